//! The `mqtt_sn` listener: what devices publish reaches MQTT clients, and the reverse, at each QoS.
//!
//! `fulmar_mqttsn` has the protocol's tests; these are about the way through the broker.
#![allow(clippy::unwrap_used)]

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use fulmar_client::{Client, Event, Events, Options, SubscribeOptions};
use fulmar_mqtt::QoS;
use fulmar_mqttsn::{Message, Publish, ReturnCode, TopicName, TopicRef, WillTopic};
use fulmar_server::{Config, Server};
use tokio::runtime::Runtime;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn start(more: &str) -> (Server, tempfile::TempDir) {
    let data = tempfile::tempdir().unwrap();
    let listeners = "[listeners]\nmqtt = [\"127.0.0.1:0\"]\nmqtt_sn = [\"127.0.0.1:0\"]\nmqtts = []\nws = []\n\
                     quic = []\nhttps = []\nhttp = []\ncoap = []\ncoaps = []\n";
    let config = Config::from_toml(&format!("{listeners}{more}")).unwrap();
    (Server::start(config.with_data_dir(data.path())).unwrap(), data)
}

/// A device: it sends a message, and sees the next one that it is sent.
struct Device(UdpSocket);

impl Device {
    fn new(server: &Server) -> Device {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server.address("mqtt_sn").unwrap()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Device(socket)
    }

    fn send(&self, message: Message<'_>) {
        self.0.send(&message.encode().unwrap()).unwrap();
    }

    #[track_caller]
    fn gets(&self, expected: Message<'_>) {
        let mut room = [0; 256];
        let length = self.0.recv(&mut room).unwrap();
        assert_eq!(Message::decode(&room[..length]).unwrap(), expected);
    }

    /// Wakes up until there is a message. The publisher may have its PUBACK before the gateway has the message.
    #[track_caller]
    fn wakes_for(&self, expected: Message<'_>) {
        let deadline = Instant::now() + PATIENCE;
        let mut room = [0; 256];
        while Instant::now() < deadline {
            self.send(Message::Pingreq(Some("valve")));
            let length = self.0.recv(&mut room).unwrap();
            let message = Message::decode(&room[..length]).unwrap();
            if message != Message::Pingresp {
                return assert_eq!(message, expected);
            }
        }
        panic!("nothing but PINGRESP");
    }

    fn connect(&self, client_id: &str) {
        self.send(Message::Connect { will: false, clean: true, keep_alive_s: 300, client_id });
        self.gets(Message::Connack(ReturnCode::Accepted));
    }
}

/// An MQTT client that has subscribed to everything.
struct Mqtt {
    runtime: Runtime,
    client: Client,
    events: Events,
}

impl Mqtt {
    fn new(server: &Server) -> Mqtt {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = format!("mqtt://{}", server.address("mqtt").unwrap());
        let (client, events) = runtime.block_on(async {
            let (client, events) = Client::connect(Options::new(&url).unwrap()).unwrap();
            let options = SubscribeOptions { no_local: true, ..SubscribeOptions::default() };
            client.subscribe(&[("#", options)]).await.unwrap();
            (client, events)
        });
        Mqtt { runtime, client, events }
    }

    #[track_caller]
    fn gets(&mut self, topic: &str, payload: &str) {
        let message = self.runtime.block_on(async {
            loop {
                let event = tokio::time::timeout(PATIENCE, self.events.next()).await;
                if let Event::Message(message) = event.unwrap().unwrap() {
                    return message;
                }
            }
        });
        assert_eq!((&*message.topic, &*message.payload), (topic, payload.as_bytes()));
    }

    fn publish(&self, message: fulmar_client::Message) {
        self.runtime.block_on(async { self.client.publish(message).await.unwrap().await.unwrap() });
    }
}

fn publish(qos: Option<QoS>, topic: TopicRef, msg_id: u16, payload: &str) -> Message<'_> {
    let payload = payload.as_bytes();
    Message::Publish(Publish { dup: false, qos, retain: false, topic, msg_id, payload })
}

#[test]
fn what_a_device_publishes_reaches_mqtt_clients_at_each_qos() {
    let (server, _data) = start("[[mqtt_sn.predefined]]\nid = 7\ntopic = \"plant/button\"\n");
    let mut mqtt = Mqtt::new(&server);
    // Without a connection.
    let stranger = Device::new(&server);
    stranger.send(publish(None, TopicRef::Predefined(7), 0, "pressed"));
    mqtt.gets("plant/button", "pressed");
    let device = Device::new(&server);
    device.connect("meter-7");
    device.send(Message::Register { topic_id: 0, msg_id: 1, topic: "plant/meter" });
    device.gets(Message::Regack { topic_id: 1, msg_id: 1, code: ReturnCode::Accepted });
    let topic = TopicRef::Normal(1);
    device.send(publish(Some(QoS::AtMostOnce), topic, 0, "0"));
    mqtt.gets("plant/meter", "0");
    device.send(publish(Some(QoS::AtLeastOnce), topic, 2, "1"));
    device.gets(Message::Puback { topic_id: 1, msg_id: 2, code: ReturnCode::Accepted });
    mqtt.gets("plant/meter", "1");
    device.send(publish(Some(QoS::ExactlyOnce), topic, 3, "2"));
    device.gets(Message::Pubrec(3));
    device.send(Message::Pubrel(3));
    device.gets(Message::Pubcomp(3));
    mqtt.gets("plant/meter", "2");
    server.stop().unwrap();
    // Devices are not left to wait for a server that has gone.
    device.gets(Message::Disconnect { duration_s: None });
}

#[test]
fn a_device_gets_what_is_published_at_each_qos_and_after_its_sleep() {
    let (server, _data) = start("");
    let (mqtt, device) = (Mqtt::new(&server), Device::new(&server));
    device.connect("valve");
    let filter = TopicName::Name("plant/valve");
    device.send(Message::Subscribe { dup: false, qos: QoS::ExactlyOnce, msg_id: 1, topic: filter });
    let code = ReturnCode::Accepted;
    device.gets(Message::Suback { qos: QoS::ExactlyOnce, topic_id: 1, msg_id: 1, code });
    let (topic, command) = (TopicRef::Normal(1), |text: &str| {
        fulmar_client::Message::new("plant/valve", text.to_owned())
    });
    mqtt.publish(command("open"));
    device.gets(publish(Some(QoS::AtMostOnce), topic, 0, "open"));
    mqtt.publish(command("half").qos1());
    device.gets(publish(Some(QoS::AtLeastOnce), topic, 1, "half"));
    device.send(Message::Puback { topic_id: 1, msg_id: 1, code });
    mqtt.publish(command("shut").qos2());
    device.gets(publish(Some(QoS::ExactlyOnce), topic, 2, "shut"));
    device.send(Message::Pubrec(2));
    device.gets(Message::Pubrel(2));
    device.send(Message::Pubcomp(2));
    // While it sleeps, messages wait; a ping with its name fetches them.
    device.send(Message::Disconnect { duration_s: Some(600) });
    device.gets(Message::Disconnect { duration_s: None });
    mqtt.publish(command("later").qos1());
    device.wakes_for(publish(Some(QoS::AtLeastOnce), topic, 3, "later"));
    device.send(Message::Puback { topic_id: 1, msg_id: 3, code });
    device.gets(Message::Pingresp);
    device.connect("valve");
    device.send(Message::Subscribe { dup: false, qos: QoS::AtMostOnce, msg_id: 4, topic: filter });
    device.gets(Message::Suback { qos: QoS::AtMostOnce, topic_id: 1, msg_id: 4, code });
    device.send(Message::Unsubscribe { msg_id: 5, topic: filter });
    device.gets(Message::Unsuback(5));
    mqtt.publish(command("unheard"));
    device.send(Message::Pingreq(None));
    device.gets(Message::Pingresp);
    server.stop().unwrap();
}

#[test]
fn a_will_is_published_when_its_device_is_silent() {
    let (server, _data) = start("");
    let mut mqtt = Mqtt::new(&server);
    let device = Device::new(&server);
    device.send(Message::Connect { will: true, clean: true, keep_alive_s: 1, client_id: "pump" });
    device.gets(Message::WillTopicReq);
    let topic = WillTopic { qos: QoS::AtLeastOnce, retain: false, topic: "plant/lost" };
    device.send(Message::WillTopic(Some(topic)));
    device.gets(Message::WillMsgReq);
    device.send(Message::WillMsg(b"pump"));
    device.gets(Message::Connack(ReturnCode::Accepted));
    // It says nothing for longer than its keep alive allows.
    mqtt.gets("plant/lost", "pump");
    server.stop().unwrap();
}
