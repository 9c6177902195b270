//! The test vectors of RFC 9001, appendix A, that are about AES-128-GCM.

use super::packet::{self, Header};
use crate::crypto::{PacketKeys, initial_keys, retry_tag};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect()
}

fn keys() -> (PacketKeys, PacketKeys) {
    let (mut client, mut server) = (PacketKeys::none(), PacketKeys::none());
    initial_keys(&hex("8394c8f03e515708"), &mut client, &mut server);
    (client, server)
}

/// Protects a long-header packet whose packet number begins at `number_at`.
fn protect(
    keys: &PacketKeys,
    number: u32,
    number_at: usize,
    header: &str,
    payload: &[u8],
) -> Vec<u8> {
    let mut header = hex(header);
    let mut body = payload.to_vec();
    let tag = keys.seal(number, &header, &mut body);
    body.extend(tag);
    let sampled = 4 - (header.len() - number_at);
    let mask = keys.mask(&body[sampled..sampled + 16]);
    header[0] ^= mask[0] & 0x0f;
    for (byte, mask) in header[number_at..].iter_mut().zip(&mask[1..]) {
        *byte ^= mask;
    }
    [header, body].concat()
}

#[test]
fn a_1_keys() {
    let (client, server) = keys();
    let expected = |key: &str, iv: &str, header: &str| (hex(key), hex(iv), hex(header));
    assert_eq!(
        client.parts(),
        expected(
            "1f369613dd76d5467730efcbe3b1a22d",
            "fa044b2f42a3fd3b46fb255c",
            "9f50449e04a0e810283a1e9933adedd2"
        )
    );
    assert_eq!(
        server.parts(),
        expected(
            "cf3a5331653c364c88f0f379b6067e37",
            "0ac1493ca1905853b0bba03e",
            "c206b8d9b9f0f37644430b490eeaa314"
        )
    );
}

#[test]
fn a_2_client_initial() {
    let mut payload = hex("060040f1010000ed0303ebf8fa56f129 39b9584a3896472ec40bb863cfd3e868 \
         04fe3a47f06a2b69484c000004130113 02010000c000000010000e00000b6578 \
         616d706c652e636f6dff01000100000a 00080006001d00170018001000070005 \
         04616c706e0005000501000000000033 00260024001d00209370b2c9caa47fba \
         baf4559fedba753de171fa71f50f1ce1 5d43e994ec74d748002b000302030400 \
         0d0010000e0403050306030203080408 050806002d00020101001c0002400100 \
         3900320408ffffffffffffffff050480 00ffff07048000ffff08011001048000 \
         75300901100f088394c8f03e51570806 048000ffff");
    assert_eq!(payload.len(), 245);
    payload.resize(1162, 0);
    let header = "c300000001088394c8f03e5157080000449e00000002";
    let packet = protect(&keys().0, 2, 18, header, &payload);
    assert_eq!(packet.len(), 1200);
    let begin = hex("c000000001088394c8f03e5157080000449e7b9aec34d1b1c98dd7689fb8ec11");
    assert_eq!(packet[..32], begin);
    assert_eq!(packet[1184..], hex("e221af44860018ab0856972e194cd934"));
}

const SERVER_INITIAL: &str = "cf000000010008f067a5502a4262b500 4075c0d95a482cd0991cd25b0aac406a \
    5816b6394100f37a1c69797554780bb3 8cc5a99f5ede4cf73c3ec2493a1839b3 \
    dbcba3f6ea46c5b7684df3548e7ddeb9 c3bf9c73cc3f3bded74b562bfb19fb84 \
    022f8ef4cdd93795d77d06edbb7aaf2f 58891850abbdca3d20398c276456cbc4 \
    2158407dd074ee";

#[test]
fn a_3_server_initial() {
    let payload = hex("02000000000600405a020000560303ee fce7f7b37ba1d1632e96677825ddf739 \
         88cfc79825df566dc5430b9a045a1200 130100002e00330024001d00209d3c94 \
         0d89690b84d08a60993c144eca684d10 81287c834d5311bcf32bb9da1a002b00 \
         020304");
    let header = "c1000000010008f067a5502a4262b50040750001";
    let packet = protect(&keys().1, 1, 18, header, &payload);
    assert_eq!(packet, hex(SERVER_INITIAL));

    // And back, as it is received.
    let Some(Header::Protected { number_at, end, .. }) = packet::parse(&packet) else {
        panic!("not a packet");
    };
    assert_eq!((number_at, end), (18, packet.len()));
    let server = keys().1;
    let mask = server.mask(&packet[22..38]);
    assert_eq!(packet[0] ^ mask[0] & 0x0f, 0xc1);
    let (body, tag) = packet[20..].split_at(payload.len());
    let mut body = body.to_vec();
    assert!(server.open(1, &hex(header), &mut body, tag));
    assert_eq!(body, payload);
}

#[test]
fn a_4_retry() {
    let packet = hex("ff000000010008f067a5502a4262b5746f6b656e04a265ba2eff4d829058fb3f0f2496ba");
    let Some(Header::Retry { source, token }) = packet::parse(&packet) else {
        panic!("not a Retry packet");
    };
    assert_eq!((source.as_slice(), token), (&hex("f067a5502a4262b5")[..], &b"token"[..]));
    let (body, tag) = packet.split_at(packet.len() - 16);
    let pseudo = [&[8][..], &hex("8394c8f03e515708"), body].concat();
    assert_eq!(retry_tag(&pseudo), tag);
}
