//! Hellos that are taken apart and put together; `client_hello` is for other modules' tests, too.

use super::*;

/// A record with a ClientHello that has a cookie, offers TLS_PSK_WITH_AES_128_CCM_8 and has these
/// extensions.
pub(in crate::dtls) fn client_hello(extensions: &[u8]) -> Vec<u8> {
    let mut body = vec![0xfe, 0xfd];
    body.extend([7; 32]);
    body.extend([0, 3, 1, 2, 3, 0, 2, 0xc0, 0xa8, 1, 0]);
    body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
    body.extend(extensions);
    let length = u16::try_from(body.len()).unwrap().to_be_bytes();
    let mut message = vec![CLIENT_HELLO, 0, length[0], length[1], 0, 1, 0, 0, 0, 0];
    message.extend(length);
    message.extend(body);
    let header = [22, 0xfe, 0xfd, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    with_messages(&header, &message).unwrap()
}

#[test]
fn hellos_are_taken_apart_wherever_they_end() {
    let datagram = client_hello(&[0, 54, 0, 1, 0, 0, 23, 0, 0]);
    let inside = handshake_messages(&datagram).unwrap();
    let (hello, after) = first(inside, CLIENT_HELLO).unwrap();
    assert!(after.is_empty());
    assert_eq!(random(hello), Some(&[7; 32]));
    assert_eq!(hello[suites(hello).unwrap()], [0xc0, 0xa8]);
    let list = &hello[client_extensions(hello).unwrap()];
    assert_eq!(extension(list, 54), Some(&[0][..]));
    assert_eq!(extension(list, 23), Some(&[][..]));
    assert_eq!(extension(list, 43), None);
    for end in 0..datagram.len() {
        assert_eq!(handshake_messages(&datagram[..end]), None, "{end} bytes");
    }
    for end in 0..inside.len() {
        assert_eq!(first(&inside[..end], CLIENT_HELLO), None, "{end} bytes");
        assert_eq!(client_extensions(&inside[..end]), None, "{end} bytes");
    }
    assert_eq!(first(inside, SERVER_HELLO), None);
}

#[test]
fn all_lengths_count_what_is_added() {
    // With some of these sizes a length gets its second byte.
    for size in 0..=255 {
        let datagram = client_hello(&vec![9; size]);
        let (hello, _) = first(handshake_messages(&datagram).unwrap(), CLIENT_HELLO).unwrap();
        let longer = with_more(hello, &client_extensions(hello).unwrap(), &[8; 13]);
        let longer = with_messages(&datagram, &longer).unwrap();
        let (hello, after) = first(handshake_messages(&longer).unwrap(), CLIENT_HELLO).unwrap();
        assert!(after.is_empty());
        let list = &hello[client_extensions(hello).unwrap()];
        assert_eq!(list, [vec![9; size], vec![8; 13]].concat());
    }
}

#[test]
fn fragments_and_what_is_encrypted_are_left_alone() {
    let mut datagram = client_hello(&[]);
    let whole = handshake_messages(&datagram).unwrap();
    for (at, what) in [(8, "a later fragment"), (11, "a first fragment")] {
        let mut changed = whole.to_vec();
        changed[at] ^= 1;
        assert_eq!(first(&changed, CLIENT_HELLO), None, "{what}");
    }
    datagram[4] = 1;
    assert_eq!(handshake_messages(&datagram), None);
}
