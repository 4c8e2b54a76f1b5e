use super::*;
use crate::abi::bytes_of;

fn decode<'a>(op: Opcode, args: &'a [u8], data: &'a [u8]) -> Result<Operation<'a>, Errno> {
    Operation::decode(op as u32, args, data)
}

/// A small generator of arbitrary bytes (xorshift64*), so that a failing case can be reproduced by
/// its seed.
struct Bytes(u64);

impl Bytes {
    fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn take(&mut self, max: u64) -> Vec<u8> {
        let len = self.word() % (max + 1);
        // Many zeros and slashes, so that strings end and separators occur.
        (0..len).map(|_| [0, b'/', b'a', self.word() as u8][self.word() as usize % 4]).collect()
    }
}

#[test]
fn arbitrary_bytes_never_panic() {
    let mut bytes = Bytes(0x5eed);
    let mut understood = 0;
    for _ in 0..200_000 {
        let opcode = (bytes.word() % 60) as u32;
        let (args, data) = (bytes.take(128), bytes.take(600));
        match Operation::decode(opcode, &args, &data) {
            Ok(Operation::Unsupported) => {}
            Ok(operation) => {
                understood += 1;
                check_bounds(operation, &data);
            }
            Err(errno) => assert!(errno == Errno::EIO || errno == Errno::ENAMETOOLONG),
        }
        let header = InHeader { opcode, ..Default::default() };
        if let Some(OneWay::Forget(items)) = OneWay::decode(&header, &data) {
            assert!(items.len() <= 1 + data.len() / size_of::<abi::ForgetOne>());
        }
    }
    assert!(understood > 10_000, "the generator must reach the decoders: {understood}");
}

fn check_bounds(operation: Operation<'_>, data: &[u8]) {
    match operation {
        Operation::Write(args) => assert!(args.size as usize <= data.len()),
        Operation::Lookup { name } | Operation::Unlink { name } | Operation::Rmdir { name } => {
            assert!(
                !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&b'/') && !name.contains(&0)
            );
        }
        _ => {}
    }
}

#[test]
fn names_are_taken_in_order() {
    let args = abi::Rename2In { newdir: 9, flags: 1, padding: 0 };
    let operation = decode(Opcode::Rename2, bytes_of(&args), b"from\0to\0").unwrap();
    let expected = Operation::Rename {
        new_parent: InodeId(9),
        flags: 1,
        name: b"from".as_slice(),
        new_name: b"to".as_slice(),
    };
    assert_eq!(operation, expected);
    let operation = decode(Opcode::Symlink, b"", b"link\0/some/where\0").unwrap();
    assert_eq!(operation, Operation::Symlink { name: b"link", target: b"/some/where" });
}

#[test]
fn broken_names_are_refused() {
    assert_eq!(decode(Opcode::Lookup, b"", b""), Err(Errno::EIO));
    assert_eq!(decode(Opcode::Lookup, b"", b"\0"), Err(Errno::EIO));
    assert_eq!(decode(Opcode::Lookup, b"", b"endless"), Err(Errno::EIO));
    assert_eq!(decode(Opcode::Lookup, b"", b"a/b\0"), Err(Errno::EIO));
    let mut long = vec![b'x'; NAME_MAX];
    long.push(0);
    assert!(decode(Opcode::Lookup, b"", &long).is_ok());
    long.insert(0, b'x');
    assert_eq!(decode(Opcode::Lookup, b"", &long), Err(Errno::ENAMETOOLONG));
}

#[test]
fn a_write_longer_than_its_data_is_refused() {
    let args = abi::WriteIn { size: 5, ..Default::default() };
    assert_eq!(decode(Opcode::Write, bytes_of(&args), b"1234"), Err(Errno::EIO));
    assert_eq!(decode(Opcode::Write, bytes_of(&args), b"12345"), Ok(Operation::Write(args)));
}

#[test]
fn xattr_values_may_hold_nul() {
    let args = abi::SetxattrIn { size: 3, flags: 1, setxattr_flags: abi::SETXATTR_ACL_KILL_SGID, padding: 0 };
    let expected = Operation::Setxattr { flags: 1, kill_sgid: true, name: b"user.a", value: b"\0x\0" };
    assert_eq!(decode(Opcode::Setxattr, bytes_of(&args), b"user.a\0\0x\0"), Ok(expected));
    assert_eq!(decode(Opcode::Setxattr, bytes_of(&args), b"user.a\0x"), Err(Errno::EIO));
}

#[test]
fn single_and_batched_forgets_are_decoded() {
    let one = InHeader { opcode: Opcode::Forget as u32, nodeid: 7, ..Default::default() };
    assert_eq!(OneWay::decode(&one, &3u64.to_ne_bytes()), Some(OneWay::Forget(vec![(InodeId(7), 3)])));
    let batch = InHeader { opcode: Opcode::BatchForget as u32, ..Default::default() };
    let mut body = bytes_of(&abi::BatchForgetIn { count: 2, dummy: 0 }).to_vec();
    for (nodeid, nlookup) in [(5, 1), (6, 2), (8, 9)] {
        body.extend_from_slice(bytes_of(&abi::ForgetOne { nodeid, nlookup }));
    }
    let expected = OneWay::Forget(vec![(InodeId(5), 1), (InodeId(6), 2)]);
    assert_eq!(OneWay::decode(&batch, &body), Some(expected));
}
