// Eclipse Paho's Go clients over QUIC: MQTT 5 with autopaho, which repairs lost connections by itself, and
// MQTT 3.1.1 with the older library. Besides, autopaho over WebSocket (gorilla's).
package interop

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fulmar.example/quicconn"
	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	mqtt "github.com/eclipse/paho.mqtt.golang"
)

// peer is an autopaho client with a session that outlives its connections.
type peer struct {
	*autopaho.ConnectionManager
	got *inbox
	// connection is the newest one over QUIC, to be cut.
	connection atomic.Pointer[quicconn.Conn]
	resumed    atomic.Int32
}

func newPeer(t *testing.T, ctx context.Context, name string) *peer {
	t.Helper()
	p := &peer{got: newInbox()}
	address, tlsConfig := brokerAddress(t), configuration(t)
	p.start(t, ctx, autopaho.ClientConfig{
		ServerUrls:   []*url.URL{{Scheme: "quic", Host: address.String()}},
		ClientConfig: paho.ClientConfig{ClientID: name},
		AttemptConnection: func(ctx context.Context, _ autopaho.ClientConfig, _ *url.URL) (net.Conn, error) {
			control, err := dial(ctx, address, tlsConfig)
			if err != nil {
				return nil, err
			}
			p.connection.Store(control)
			return packets.NewThreadSafeConn(control), nil
		},
	})
	return p
}

// newWebSocketPeer is over the WebSocket that autopaho brings along.
func newWebSocketPeer(t *testing.T, ctx context.Context, name, where string) *peer {
	t.Helper()
	p := &peer{got: newInbox()}
	server, err := url.Parse(where)
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig := configuration(t)
	tlsConfig.NextProtos = nil
	p.start(t, ctx, autopaho.ClientConfig{
		ServerUrls:   []*url.URL{server},
		TlsCfg:       tlsConfig,
		ClientConfig: paho.ClientConfig{ClientID: name},
	})
	return p
}

// start connects; config says where and as whom.
func (p *peer) start(t *testing.T, ctx context.Context, config autopaho.ClientConfig) {
	t.Helper()
	config.KeepAlive = 30
	config.SessionExpiryInterval = 600
	config.ReconnectBackoff = autopaho.NewConstantBackoff(10 * time.Millisecond)
	config.OnConnectionUp = func(_ *autopaho.ConnectionManager, connack *paho.Connack) {
		if connack.SessionPresent {
			p.resumed.Add(1)
		}
	}
	config.OnPublishReceived = []func(paho.PublishReceived) (bool, error){
		func(message paho.PublishReceived) (bool, error) {
			p.got.put(fmt.Sprintf("%s q%d", message.Packet.Payload, message.Packet.QoS))
			return true, nil
		},
	}
	manager, err := autopaho.NewConnection(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	p.ConnectionManager = manager
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := manager.Disconnect(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := manager.AwaitConnection(ctx); err != nil {
		t.Fatal(err)
	}
}

func (p *peer) subscribe(t *testing.T, ctx context.Context, filter string) {
	t.Helper()
	options := []paho.SubscribeOptions{{Topic: filter, QoS: 2}}
	if _, err := p.Subscribe(ctx, &paho.Subscribe{Subscriptions: options}); err != nil {
		t.Fatal(err)
	}
}

// everyQos publishes at each quality of service, which is to be seen on the other side, in order.
func everyQos(t *testing.T, ctx context.Context, sub, pub *peer, topic string) {
	t.Helper()
	sub.subscribe(t, ctx, topic)
	for qos := range byte(3) {
		message := paho.Publish{Topic: topic, QoS: qos, Payload: fmt.Appendf(nil, "m%d", qos)}
		if _, err := pub.Publish(ctx, &message); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := pub.Publish(ctx, &paho.Publish{Topic: topic, QoS: 2, Payload: []byte("end")}); err != nil {
		t.Fatal(err)
	}
	got := sub.got.until(t, ctx, "end q2")
	if !slices.Equal(got, []string{"m0 q0", "m1 q1", "m2 q2"}) {
		t.Fatalf("got %q", got)
	}
}

func TestPahoMqtt5EveryQos(t *testing.T) {
	ctx := withPatience(t)
	everyQos(t, ctx, newPeer(t, ctx, "go-sub"), newPeer(t, ctx, "go-pub"), "go/qos")
}

func TestPahoMqtt5WebSocket(t *testing.T) {
	for _, kind := range []string{"ws", "wss"} {
		t.Run(kind, func(t *testing.T) {
			ctx := withPatience(t)
			where := setting(t, "FULMAR_"+strings.ToUpper(kind))
			sub := newWebSocketPeer(t, ctx, "go-sub-"+kind, where)
			everyQos(t, ctx, sub, newWebSocketPeer(t, ctx, "go-pub-"+kind, where), "go/"+kind)
		})
	}
}

// Both ends lose their connection again and again while QoS 2 messages are under way.
func TestPahoMqtt5Reconnects(t *testing.T) {
	const messages, cuts = 200, 4
	ctx := withPatience(t)
	sub, pub := newPeer(t, ctx, "go-cut-sub"), newPeer(t, ctx, "go-cut-pub")
	sub.subscribe(t, ctx, "go/cut")
	var expected []string
	for number := range messages {
		message := paho.Publish{Topic: "go/cut", QoS: 2, Payload: fmt.Appendf(nil, "%d", number)}
		if err := pub.PublishViaQueue(ctx, &autopaho.QueuePublish{Publish: &message}); err != nil {
			t.Fatal(err)
		}
		expected = append(expected, fmt.Sprintf("%d q2", number))
		if number%(messages/cuts) == messages/cuts/2 {
			for _, end := range []*peer{sub, pub} {
				cut(t, ctx, end)
			}
		}
	}
	last := paho.Publish{Topic: "go/cut", QoS: 2, Payload: []byte("end")}
	if err := pub.PublishViaQueue(ctx, &autopaho.QueuePublish{Publish: &last}); err != nil {
		t.Fatal(err)
	}
	got := slices.Clone(sub.got.until(t, ctx, "end q2"))
	slices.Sort(got)
	slices.Sort(expected)
	if !slices.Equal(got, expected) {
		t.Fatalf("%d messages sent, got %d: %q", len(expected), len(got), got)
	}
}

// cut closes a client's connection and waits until it has its session back, so that the next cut meets the
// next connection.
func cut(t *testing.T, ctx context.Context, end *peer) {
	t.Helper()
	before := end.resumed.Load()
	end.connection.Load().QUIC.CloseWithError(0, "cut by the test")
	for end.resumed.Load() == before {
		if ctx.Err() != nil {
			t.Fatal("no reconnection")
		}
		time.Sleep(time.Millisecond)
	}
}

// The machine's network changes while QoS 2 messages are under way: Paho sees nothing of it.
func TestPahoMqtt5GoesOnFromAnotherSocket(t *testing.T) {
	ctx := withPatience(t)
	sub, pub := newPeer(t, ctx, "go-net-sub"), newPeer(t, ctx, "go-net-pub")
	sub.subscribe(t, ctx, "go/net")
	connects := metric(t, `fulmar_connections_opened_total{transport="quic"}`)
	migrations := metric(t, "fulmar_quic_migrations_total")
	var expected []string
	for number := range 100 {
		message := paho.Publish{Topic: "go/net", QoS: 2, Payload: fmt.Appendf(nil, "%d", number)}
		if _, err := pub.Publish(ctx, &message); err != nil {
			t.Fatal(err)
		}
		expected = append(expected, fmt.Sprintf("%d q2", number))
		if number == 30 || number == 60 {
			for _, end := range []*peer{sub, pub} {
				if err := end.connection.Load().NetworkChanged(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if got := sub.got.until(t, ctx, "99 q2"); !slices.Equal(got, expected[:99]) {
		t.Fatalf("got %q", got)
	}
	if now := metric(t, `fulmar_connections_opened_total{transport="quic"}`); now != connects {
		t.Fatalf("%d connections, %d before: it connected again", now, connects)
	}
	for metric(t, "fulmar_quic_migrations_total") < migrations+4 {
		if ctx.Err() != nil {
			t.Fatal("the broker has seen no other address")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestPahoMqtt311EveryQos(t *testing.T) {
	ctx := withPatience(t)
	address, tlsConfig := brokerAddress(t), configuration(t)
	got := newInbox()
	open := func(name string) mqtt.Client {
		options := mqtt.NewClientOptions().AddBroker("tls://" + address.String())
		options.SetClientID(name).SetProtocolVersion(4).SetAutoReconnect(false)
		options.SetCustomOpenConnectionFn(func(*url.URL, mqtt.ClientOptions) (net.Conn, error) {
			return dial(ctx, address, tlsConfig)
		})
		client := mqtt.NewClient(options)
		await(t, client.Connect())
		t.Cleanup(func() { client.Disconnect(250) })
		return client
	}
	sub, pub := open("go-old-sub"), open("go-old-pub")
	await(t, sub.Subscribe("go/old", 2, func(_ mqtt.Client, message mqtt.Message) {
		got.put(fmt.Sprintf("%s q%d", message.Payload(), message.Qos()))
	}))
	for qos := range byte(3) {
		await(t, pub.Publish("go/old", qos, false, fmt.Sprintf("m%d", qos)))
	}
	await(t, pub.Publish("go/old", 2, false, "end"))
	if all := got.until(t, ctx, "end q2"); !slices.Equal(all, []string{"m0 q0", "m1 q1", "m2 q2"}) {
		t.Fatalf("got %q", all)
	}
}

func await(t *testing.T, token mqtt.Token) {
	t.Helper()
	if !token.WaitTimeout(patience) {
		t.Fatal("no answer")
	}
	if token.Error() != nil {
		t.Fatal(token.Error())
	}
}
