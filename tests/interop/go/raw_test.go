// What QUIC adds to MQTT, packet by packet: data streams, 0-RTT, and a client that changes its address.
package interop

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/quic-go/quic-go"
)

func connect(name string) *packets.ControlPacket {
	packet := packets.NewControlPacket(packets.CONNECT)
	content := packet.Content.(*packets.Connect)
	content.ProtocolName, content.ProtocolVersion = "MQTT", 5
	content.ClientID, content.CleanStart = name, true
	return packet
}

func subscribe(id uint16, filter string) *packets.ControlPacket {
	packet := packets.NewControlPacket(packets.SUBSCRIBE)
	content := packet.Content.(*packets.Subscribe)
	content.PacketID = id
	content.Subscriptions = []packets.SubOptions{{Topic: filter, QoS: 1}}
	return packet
}

func publish(id uint16, topic, payload string) *packets.ControlPacket {
	packet := packets.NewControlPacket(packets.PUBLISH)
	content := packet.Content.(*packets.Publish)
	content.PacketID, content.QoS = id, 1
	content.Topic, content.Payload = topic, []byte(payload)
	return packet
}

func write(t *testing.T, to io.Writer, list ...*packets.ControlPacket) {
	t.Helper()
	for _, packet := range list {
		if _, err := packet.WriteTo(to); err != nil {
			t.Fatal(err)
		}
	}
}

// expect reads the next packet, which must be of this type.
func expect(t *testing.T, from *quic.Stream, kind byte) *packets.ControlPacket {
	t.Helper()
	from.SetReadDeadline(time.Now().Add(patience))
	packet, err := packets.ReadPacket(from)
	if err != nil {
		t.Fatal(err)
	}
	if packet.Type != kind {
		t.Fatalf("wanted packet type %d, got %s: %v", kind, packet.PacketType(), packet.Content)
	}
	return packet
}

func expectPayload(t *testing.T, from *quic.Stream, payload string) uint16 {
	t.Helper()
	message := expect(t, from, packets.PUBLISH).Content.(*packets.Publish)
	if string(message.Payload) != payload {
		t.Fatalf("wanted %q, got %q", payload, message.Payload)
	}
	return message.PacketID
}

func acknowledge(t *testing.T, to io.Writer, id uint16) {
	t.Helper()
	packet := packets.NewControlPacket(packets.PUBACK)
	packet.Content.(*packets.Puback).PacketID = id
	write(t, to, packet)
}

// A data stream has subscriptions and packet identifiers of its own, and what is published on it reaches the
// subscriptions of other streams.
func TestDataStream(t *testing.T) {
	ctx := withPatience(t)
	control, err := dial(ctx, brokerAddress(t), configuration(t))
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	write(t, control, connect("go-streams"))
	expect(t, control.Stream, packets.CONNACK)
	data, err := control.QUIC.OpenStreamSync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	write(t, control, subscribe(1, "go/control"))
	expect(t, control.Stream, packets.SUBACK)
	// The same identifier on both streams: each has its own.
	write(t, data, subscribe(1, "go/data"))
	expect(t, data, packets.SUBACK)
	for number := range 20 {
		text := fmt.Sprint(number)
		write(t, data, publish(7, "go/control", text))
		expect(t, data, packets.PUBACK)
		acknowledge(t, control, expectPayload(t, control.Stream, text))
		write(t, control, publish(7, "go/data", text))
		expect(t, control.Stream, packets.PUBACK)
		acknowledge(t, data, expectPayload(t, data, text))
	}
}

// tickets tells when the broker's session ticket has come.
type tickets struct {
	tls.ClientSessionCache
	arrived chan struct{}
}

func (c *tickets) Put(key string, state *tls.ClientSessionState) {
	c.ClientSessionCache.Put(key, state)
	if state != nil {
		select {
		case c.arrived <- struct{}{}:
		default:
		}
	}
}

// CONNECT and a first PUBLISH leave with the first flight, and the message arrives once.
func TestZeroRtt(t *testing.T) {
	ctx := withPatience(t)
	sub := newPeer(t, ctx, "go-early-sub")
	sub.subscribe(t, ctx, "go/early")
	config := configuration(t)
	cache := &tickets{tls.NewLRUClientSessionCache(1), make(chan struct{}, 1)}
	config.ClientSessionCache = cache
	first, err := dial(ctx, brokerAddress(t), config)
	if err != nil {
		t.Fatal(err)
	}
	write(t, first, connect("go-early"))
	expect(t, first.Stream, packets.CONNACK)
	select {
	case <-cache.arrived:
	case <-ctx.Done():
		t.Fatal("no session ticket")
	}
	first.QUIC.CloseWithError(0, "")

	accepted := metric(t, "fulmar_quic_early_accepted_total")
	again, err := quic.DialAddrEarly(ctx, brokerAddress(t).String(), config, nil)
	if err != nil {
		t.Fatal(err)
	}
	early, err := again.OpenStream()
	if err != nil {
		t.Fatal(err)
	}
	write(t, early, connect("go-early"), publish(1, "go/early", "early"))
	expect(t, early, packets.CONNACK)
	expect(t, early, packets.PUBACK)
	if !again.ConnectionState().Used0RTT {
		t.Fatal("the broker did not take the early data")
	}
	write(t, early, publish(2, "go/early", "end"))
	expect(t, early, packets.PUBACK)
	if got := sub.got.until(t, ctx, "end q1"); len(got) != 1 || got[0] != "early q1" {
		t.Fatalf("got %q", got)
	}
	// The broker counts now and then, and when a connection ends.
	again.CloseWithError(0, "")
	for metric(t, "fulmar_quic_early_accepted_total") != accepted+1 {
		if ctx.Err() != nil {
			t.Fatal("the broker did not count the early data")
		}
		time.Sleep(time.Millisecond)
	}
}

// The client moves to another socket and another address, while messages go both ways: the session and the
// connection stay, and nothing is lost or comes twice.
func TestAddressChange(t *testing.T) {
	ctx := withPatience(t)
	connection, err := socket(t, "127.0.0.1").Dial(ctx, brokerAddress(t), configuration(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.CloseWithError(0, "")
	control, err := connection.OpenStreamSync(ctx)
	if err != nil {
		t.Fatal(err)
	}
	write(t, control, connect("go-mover"), subscribe(1, "go/move"))
	expect(t, control, packets.CONNACK)
	expect(t, control, packets.SUBACK)
	connects := metric(t, `fulmar_connections_opened_total{transport="quic"}`)
	migrations := metric(t, "fulmar_quic_migrations_total")
	addresses := []string{"127.0.0.2", "127.0.0.3", "127.0.0.1"}
	for round, ip := range addresses {
		for number := range 40 {
			text := fmt.Sprintf("%d/%d", round, number)
			write(t, control, publish(uint16(number+1), "go/move", text))
			if number == 20 {
				move(t, ctx, connection, ip)
			}
			puback, message := expectBoth(t, control)
			if puback != uint16(number+1) || string(message.Payload) != text {
				t.Fatalf("wanted %q, got %q", text, message.Payload)
			}
			acknowledge(t, control, message.PacketID)
		}
	}
	if now := metric(t, `fulmar_connections_opened_total{transport="quic"}`); now != connects {
		t.Fatalf("%d connections, %d before: it connected again", now, connects)
	}
	if now := metric(t, "fulmar_quic_migrations_total"); now < migrations+len(addresses) {
		t.Fatalf("%d migrations, %d before", now, migrations)
	}
}

// move validates a path from a new socket at this address and takes it.
func move(t *testing.T, ctx context.Context, connection *quic.Conn, ip string) {
	t.Helper()
	path, err := connection.AddPath(socket(t, ip))
	if err != nil {
		t.Fatal(err)
	}
	if err := path.Probe(ctx); err != nil {
		t.Fatalf("path from %s: %v", ip, err)
	}
	if err := path.Switch(); err != nil {
		t.Fatal(err)
	}
}

// expectBoth reads a PUBACK and a PUBLISH, in whichever order they come.
func expectBoth(t *testing.T, from *quic.Stream) (uint16, *packets.Publish) {
	t.Helper()
	var acknowledged uint16
	var message *packets.Publish
	for acknowledged == 0 || message == nil {
		from.SetReadDeadline(time.Now().Add(patience))
		packet, err := packets.ReadPacket(from)
		if err != nil {
			t.Fatal(err)
		}
		switch content := packet.Content.(type) {
		case *packets.Puback:
			acknowledged = content.PacketID
		case *packets.Publish:
			message = content
		default:
			t.Fatalf("unexpected %s", packet.PacketType())
		}
	}
	return acknowledged, message
}
