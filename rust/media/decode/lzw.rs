//! LZW as GIF and TIFF have it. Strings are not stored: each is a run of the output, and is copied from there.

const CODES: usize = 4096;
const WIDEST: u32 = 12;

/// Where the codes come from.
pub trait Codes {
    /// The next code of so many bits; None at the end of the data.
    fn next(&mut self, width: u32) -> Option<usize>;
}

/// How unpacking ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The output is full.
    Full,
    /// An end code came before that.
    Code,
    /// The data ended before that.
    Data,
    /// A code that stands for nothing.
    Broken,
}

/// Fill `out`. Literals have `bits` bits; codes grow `early` codes before they must.
pub fn unpack(codes: &mut impl Codes, bits: u32, early: usize, out: &mut [u8]) -> End {
    let clear = 1_usize << bits;
    // Where the string of a code starts in the output, and how long it is.
    let mut strings = [(0_u32, 0_u32); CODES];
    if u32::try_from(out.len()).is_err() {
        return End::Broken;
    }
    let (mut next, mut width, mut last) = (clear + 2, bits + 1, None);
    let mut at = 0;
    while at < out.len() {
        let Some(code) = codes.next(width) else { return End::Data };
        if code == clear {
            (next, width, last) = (clear + 2, bits + 1, None);
            continue;
        }
        if code == clear + 1 {
            return End::Code;
        }
        let start = at;
        match last {
            _ if code < clear => {
                out[at] = code as u8;
                at += 1;
            }
            Some((from, length)) if code <= next && code < CODES => {
                let (from, length) =
                    if code < next { (strings[code].0 as usize, strings[code].1 as usize) } else { (from, length + 1) };
                let length = length.min(out.len() - at);
                copy(out, from, at, length);
                at += length;
            }
            _ => return End::Broken,
        }
        if let (Some((from, length)), true) = (last, next < CODES) {
            // The previous string and the first sample of this one, which follows it.
            strings[next] = (from as u32, length as u32 + 1);
            next += 1;
            if next + early >= 1 << width && width < WIDEST {
                width += 1;
            }
        }
        last = Some((start, at - start));
    }
    End::Full
}

/// Copy within. Most strings are short: a fixed size beyond their end, which what follows overwrites, is one move. A string
/// that ends where its copy starts overlaps it.
fn copy(out: &mut [u8], from: usize, to: usize, length: usize) {
    const WIDE: usize = 16;
    if length <= WIDE && from + WIDE <= to && to + WIDE <= out.len() {
        out.copy_within(from..from + WIDE, to);
    } else if from + length <= to {
        out.copy_within(from..from + length, to);
    } else {
        for index in 0..length {
            out[to + index] = out[from + index];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct List(Vec<usize>);

    impl Codes for List {
        fn next(&mut self, _: u32) -> Option<usize> {
            (!self.0.is_empty()).then(|| self.0.remove(0))
        }
    }

    fn run(codes: &[usize], size: usize) -> (End, Vec<u8>) {
        let mut out = vec![0; size];
        (unpack(&mut List(codes.to_vec()), 2, 0, &mut out), out)
    }

    #[test]
    fn strings_may_overlap_themselves() {
        assert_eq!(run(&[4, 1, 6, 7, 2], 7), (End::Full, vec![1, 1, 1, 1, 1, 1, 2]));
        assert_eq!(run(&[4, 1, 2, 6, 5], 6), (End::Code, vec![1, 2, 1, 2, 0, 0]));
        assert_eq!(run(&[1, 2], 3).0, End::Data);
        assert_eq!(run(&[6], 3).0, End::Broken);
        assert_eq!(run(&[1, 7], 3).0, End::Broken);
    }
}
