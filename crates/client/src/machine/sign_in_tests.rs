//! SCRAM with a server that knows the password, and with servers that do not.

use fulmar_mqtt::Version;
use fulmar_mqtt::codec::{decode, peek_frame};
use fulmar_mqtt::packet::Connect;
use fulmar_scram::{ClientFirst, DecoyKey, ServerExchange, Verifier};

use super::*;
use std::sync::Arc;
use std::time::Instant;

use crate::message::Message;
use crate::options::Options;
use fulmar_mqtt::Packet;

struct Client {
    machine: Machine<u32, u32>,
    now: Instant,
}

impl Client {
    fn start() -> Client {
        let mut options = Options::new("mqtt://localhost").unwrap();
        options.username = Some("ann".to_owned());
        options.password = Some(b"secret".to_vec());
        (options.scram, options.publish_before_connack) = (true, true);
        let now = Instant::now();
        let mut client = Client { machine: Machine::new(Arc::new(options), now), now };
        client.machine.publish(Message::new("t", "x"), 1);
        client.machine.connect(now, true, false);
        client
    }

    /// The only packet that the client has written.
    fn written(&mut self) -> Vec<u8> {
        let bytes = self.machine.output(CONTROL).to_vec();
        self.machine.sent(CONTROL, bytes.len(), self.now);
        let frame = peek_frame(&bytes, 1 << 20).unwrap().unwrap();
        assert_eq!(frame.len, bytes.len(), "nothing but authentication may be sent");
        bytes
    }

    fn data(&mut self) -> Vec<u8> {
        let bytes = self.written();
        let frame = peek_frame(&bytes, 1 << 20).unwrap().unwrap();
        match decode(&frame, Version::V5).unwrap() {
            Packet::Connect(Connect { username: None, password: None, properties, .. })
            | Packet::Auth(Auth { properties, .. }) => data(properties).unwrap().to_vec(),
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, message: &str) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let (reason, properties) = (ReasonCode::ContinueAuthentication, shown(message));
        Auth { reason, properties: properties.as_properties() }.encode(&mut bytes);
        self.machine.receive(self.now, CONTROL, &bytes).map(drop)
    }

    fn accept(&mut self, properties: Properties<'_>) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let reason = ReasonCode::Success;
        Connack { session_present: false, reason, properties }.encode(Version::V5, &mut bytes);
        self.machine.receive(self.now, CONTROL, &bytes).map(drop)
    }

    /// The server's side; returns its last message.
    fn exchange(&mut self) -> String {
        let verifier = Verifier::new(b"secret", 4096).unwrap();
        let first = self.data();
        let first = ClientFirst::parse(&first).unwrap();
        let decoy = DecoyKey::new([0; 32], 4096).verifier("ann", []);
        let (server, answer) = ServerExchange::begin(&first, Some(&verifier), &decoy).unwrap();
        self.ask(&answer).unwrap();
        server.finish(&self.data()).unwrap()
    }
}

fn shown(message: &str) -> PropertyBuf {
    let mut properties = PropertyBuf::new();
    properties
        .push(Property::AuthenticationMethod(MECHANISM))
        .push(Property::AuthenticationData(message.as_bytes()));
    properties
}

#[test]
fn nothing_but_the_exchange_is_sent_before_the_server_has_shown_who_it_is() {
    let mut client = Client::start();
    let end = client.exchange();
    assert!(client.machine.output(CONTROL).is_empty());
    client.accept(shown(&end).as_properties()).unwrap();
    assert!(client.machine.is_up() && client.written()[0] >> 4 == 3, "the message");
}

#[test]
fn a_server_that_does_not_know_the_password_is_not_trusted() {
    for end in ["", "v=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "e=other-error"] {
        let mut client = Client::start();
        client.exchange();
        let error = client.accept(shown(end).as_properties()).unwrap_err();
        assert!(matches!(error, Error::SignIn(_)) && error.is_permanent(), "{error}");
        assert!(!client.machine.is_up() && client.machine.output(CONTROL).is_empty());
    }
    let mut client = Client::start();
    client.exchange();
    assert!(client.accept(Properties::NONE).is_err(), "no data");
    let mut client = Client::start();
    client.written();
    assert!(client.accept(Properties::NONE).is_err(), "no exchange at all");
    assert!(!client.machine.is_up());
}

#[test]
fn a_server_that_asks_for_too_much_or_out_of_order_is_refused() {
    let mut client = Client::start();
    client.exchange();
    assert!(client.ask("r=x,s=AA==,i=4096").is_err(), "a second time");
    let mut client = Client::start();
    client.written();
    assert!(client.ask("r=x,s=AA==,i=4096").is_err(), "not this client's nonce");
}
