//! A minimal protobuf parser, independent of the tested code.

/// A field of a message: its number and its bytes, key included.
pub struct Field<'a> {
    pub number: u32,
    pub bytes: &'a [u8],
    /// Content of a length-delimited field.
    pub content: Option<&'a [u8]>,
}

/// The fields of a well-formed message, in order.
pub fn fields(mut message: &[u8]) -> Vec<Field<'_>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let (key, mut at) = varint(message);
        let mut content = None;
        match key & 7 {
            0 => at += varint(&message[at..]).1,
            1 => at += 8,
            2 => {
                let (length, prefix) = varint(&message[at..]);
                at += prefix;
                content = Some(&message[at..at + length as usize]);
                at += length as usize;
            }
            5 => at += 4,
            other => panic!("wire type {other}"),
        }
        let (bytes, rest) = message.split_at(at);
        found.push(Field { number: (key >> 3) as u32, bytes, content });
        message = rest;
    }
    found
}

/// A length-delimited field.
pub fn delimited(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, u64::from(number) << 3 | 2);
    put_varint(&mut out, content.len() as u64);
    out.extend_from_slice(content);
    out
}

/// A varint field.
pub fn number(number: u32, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, u64::from(number) << 3);
    put_varint(&mut out, value);
    out
}

fn varint(bytes: &[u8]) -> (u64, usize) {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return (value, at + 1);
        }
    }
    panic!("a number without end");
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
