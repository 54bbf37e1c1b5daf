//! What must hold of base64 for any bytes: every spelling of a picture is that picture.

use _core::media::base64::decode;

fn decoded(text: &[u8], url: bool) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    decode(text, url, &mut |block| out.extend_from_slice(block)).map(|_| out)
}

fn encoded(data: &[u8], pad: bool) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = Vec::with_capacity(data.len() / 3 * 4 + 4);
    for part in data.chunks(3) {
        let bits = part.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - part.len()));
        out.extend((0..=part.len()).map(|digit| DIGITS[(bits >> (18 - 6 * digit) & 63) as usize]));
        out.extend(vec![b'='; if pad { 3 - part.len() } else { 0 }]);
    }
    out
}

/// `data`: two bytes that say how to spell, then a picture.
pub fn check(data: &[u8]) {
    let &[choice, every, ref data @ ..] = data else { return };
    let on = |bit: u8| choice >> bit & 1 == 1;
    // Beyond the size of a block, so that odd spelling may begin behind plain text.
    let long = if on(0) && !data.is_empty() { data.repeat((200_000 / data.len()).min(3000)) } else { data.to_vec() };
    let plain = encoded(&long, !on(1));
    assert_eq!(decoded(&plain, true).as_deref(), Ok(&long[..]));
    let (escape, url_safe, percent, space, late) = (on(2), on(3), on(4), on(5), on(6));
    let start = if late { plain.len() / 2 } else { 0 };
    // Two alphabets in one payload are none.
    let mixed = url_safe && plain[..start].iter().any(|byte| b"+/".contains(byte));
    let mut text = plain[..start].to_vec();
    for (index, &byte) in plain[start..].iter().enumerate() {
        let odd = every == 0 || index % usize::from(every) == 0;
        if space && odd {
            text.extend(match index % 4 {
                0 => &b"\\n"[..],
                1 => b" ",
                2 => b"\\u000d",
                _ => b"%0A",
            });
        }
        match byte {
            b'+' if url_safe => text.push(b'-'),
            b'/' if url_safe => text.push(b'_'),
            b'/' if escape => text.extend(b"\\/"),
            byte if percent && odd => text.extend(format!("%{byte:02X}").into_bytes()),
            byte if escape && odd => text.extend(format!("\\u{byte:04x}").into_bytes()),
            byte => text.push(byte),
        }
    }
    let second = url_safe && text[start..].iter().any(|byte| b"-_".contains(byte));
    if !(mixed && second) {
        assert_eq!(decoded(&text, true).as_deref(), Ok(&long[..]), "{}", String::from_utf8_lossy(&text));
    }
    // Any text at all: what is taken has one reading, also when nothing but its digits is left of it.
    if let Ok(found) = decoded(data, on(7)) {
        assert_eq!(decoded(&encoded(&found, true), on(7)).as_deref(), Ok(&found[..]));
        assert!(found.len() <= data.len());
    }
}
