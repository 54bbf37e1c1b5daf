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

/// A string: its first bytes, so that a short one needs no look at the output, where it starts there, and its length.
#[derive(Clone, Copy)]
struct Run {
    head: u64,
    from: u32,
    length: u32,
}

impl Run {
    /// With one more byte, the one that follows it in the output.
    fn longer(self, byte: u8) -> Self {
        let shift = 8 * self.length;
        let head = if shift < u64::BITS { self.head | u64::from(byte) << shift } else { self.head };
        Run { head, length: self.length + 1, ..self }
    }

    /// Write it at `at`, as far as there is room, and give where that ends.
    fn write(self, out: &mut [u8], at: usize) -> usize {
        let length = (self.length as usize).min(out.len() - at);
        match out[at..].first_chunk_mut() {
            Some(target) if length <= size_of::<u64>() => *target = self.head.to_le_bytes(),
            _ => copy(out, &self.head.to_le_bytes(), self.from as usize, at, length),
        }
        at + length
    }
}

/// Fill `out`. Literals have `bits` bits; codes grow `early` codes before they must.
pub fn unpack(codes: &mut impl Codes, bits: u32, early: usize, out: &mut [u8]) -> End {
    if u32::try_from(out.len()).is_err() {
        return End::Broken;
    }
    let clear = 1_usize << bits;
    let mut runs = [Run { head: 0, from: 0, length: 1 }; CODES];
    for (value, run) in runs[..clear].iter_mut().enumerate() {
        run.head = value as u64;
    }
    let mut last: Option<Run> = None;
    let (mut next, mut width) = (clear + 2, bits + 1);
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
        let run = match last {
            _ if code < next => runs[code],
            // The string that this very code completes: it starts with the byte that it ends with.
            Some(last) if code == next && code < CODES => last.longer(last.head as u8),
            _ => return End::Broken,
        };
        if let (Some(last), true) = (last, next < CODES) {
            runs[next] = last.longer(run.head as u8);
            next += 1;
            if next + early >= 1 << width && width < WIDEST {
                width += 1;
            }
        }
        last = Some(Run { from: at as u32, ..run });
        at = run.write(out, at);
    }
    End::Full
}

/// A string that is long, or at the end of the output. One that ends where its copy starts overlaps it.
fn copy(out: &mut [u8], head: &[u8], from: usize, to: usize, length: usize) {
    if length <= head.len() {
        out[to..to + length].copy_from_slice(&head[..length]);
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
