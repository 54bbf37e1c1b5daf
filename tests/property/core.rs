//! Any document, any split: the fuzz checks on generated input, and base64 against the engine's own encoder.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../fuzz/checks.rs"]
mod checks;

use base64::prelude::{Engine, BASE64_STANDARD};
use proptest::prelude::*;
use serde_json::{json, Value};

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::btree_map("\\PC{0,6}", inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn part() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}, "uuid": "x"})),
        Just(json!({"type": "input_audio", "input_audio": {"data": "AAAA"}})),
        Just(json!({"image_url": "http://x/", "detail": "low"})),
        "\\PC{0,12}".prop_map(|text| json!({"type": "text", "text": text})),
    ]
}

proptest! {
    #[test]
    fn documents(
        rest in prop::collection::btree_map("[a-z\"\\\\é]{2,5}", any_json(), 0..5),
        parts in prop::collection::vec(part(), 0..5),
        pretty: bool,
        choice: u8,
    ) {
        let mut document: serde_json::Map<_, _> = rest.into_iter().filter(|(name, _)| name != "echo").collect();
        document.insert("messages".into(), json!([{"role": "user", "content": parts}]));
        let text = if pretty { serde_json::to_vec_pretty(&document) } else { serde_json::to_vec(&document) }.unwrap();
        checks::scan(&text);
        checks::splice(&[&[choice][..], &text].concat());
    }

    #[test]
    fn bytes(data in prop::collection::vec(any::<u8>(), 0..200)) {
        checks::scan(&data);
        checks::heads(&data);
        checks::framer(&data);
    }

    #[test]
    fn chunks(payloads in prop::collection::vec("[a-z:\\r\\n ]{1,40}", 0..6), choice: u8) {
        let mut stream = vec![choice | 1];
        for payload in payloads {
            stream.extend(format!("{:x}\r\n{payload}\r\n", payload.len()).bytes());
        }
        stream.extend(b"0\r\n\r\nrest");
        checks::framer(&stream);
    }

    #[test]
    fn payloads(
        some in prop::collection::vec(any::<u8>(), 0..300),
        times in prop_oneof![Just(1_usize), 1..400_usize],
        at in any::<prop::sample::Index>(),
    ) {
        let content = some.repeat(times);
        let plain = BASE64_STANDARD.encode(&content);
        let mut broken = plain.clone();
        broken.insert_str(at.index(plain.len() + 1), "\\n");
        let escaped = plain.replace('/', "\\/").replace('+', "%2B").replace('=', "");
        for text in [plain.as_str(), &broken, &escaped, &plain.replace('+', "-").replace('/', "_")] {
            let mut out = Vec::new();
            let done = _core::media::base64::decode(text.as_bytes(), true, &mut |block| out.extend_from_slice(block));
            prop_assert!(done.is_ok());
            prop_assert!(out == content);
        }
    }
}
