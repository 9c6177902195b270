// A client of the soak test: Eclipse Paho's autopaho over quic-go, with a session that outlives connections.
//
//	soak sub NAME ADDRESS CA-FILE FILTER...   prints each message as `QOS PAYLOAD`
//	soak pub NAME ADDRESS CA-FILE TOPIC QOS   publishes each line of standard input, prints `acknowledged LINE`
//
// A line of which that is not known, because the connection broke, is `unknown`: autopaho sends it again by itself.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/quic-go/quic-go"
)

// window is how many publications are under way at once.
const window = 16

// stream is the first stream of a QUIC connection as a net.Conn.
type stream struct {
	*quic.Stream
	quic *quic.Conn
}

func (s *stream) LocalAddr() net.Addr  { return s.quic.LocalAddr() }
func (s *stream) RemoteAddr() net.Addr { return s.quic.RemoteAddr() }
func (s *stream) Close() error         { return s.quic.CloseWithError(0, "") }

func dial(ctx context.Context, address string, config *tls.Config) (net.Conn, error) {
	// A broker that was killed says nothing; its successor answers the next packet.
	settings := &quic.Config{KeepAlivePeriod: 300 * time.Millisecond, MaxIdleTimeout: 5 * time.Second}
	connection, err := quic.DialAddr(ctx, address, config, settings)
	if err != nil {
		return nil, err
	}
	control, err := connection.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	return packets.NewThreadSafeConn(&stream{Stream: control, quic: connection}), nil
}

func main() {
	if len(os.Args) < 6 {
		log.Fatal("soak sub|pub NAME ADDRESS CA-FILE FILTER...|TOPIC QOS")
	}
	role, name, address, rest := os.Args[1], os.Args[2], os.Args[3], os.Args[5:]
	pem, err := os.ReadFile(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	tlsConfig := &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"mqtt"}}

	ctx := context.Background()
	out, lock := bufio.NewWriter(os.Stdout), sync.Mutex{}
	say := func(line string) {
		lock.Lock()
		defer lock.Unlock()
		fmt.Fprintln(out, line)
		out.Flush()
	}
	config := autopaho.ClientConfig{
		ServerUrls:            []*url.URL{{Scheme: "quic", Host: address}},
		KeepAlive:             5,
		SessionExpiryInterval: 3600,
		ReconnectBackoff:      autopaho.NewConstantBackoff(50 * time.Millisecond),
		ConnectTimeout:        3 * time.Second,
		AttemptConnection: func(ctx context.Context, _ autopaho.ClientConfig, _ *url.URL) (net.Conn, error) {
			return dial(ctx, address, tlsConfig)
		},
		ClientConfig: paho.ClientConfig{
			ClientID: name,
			OnPublishReceived: []func(paho.PublishReceived) (bool, error){
				func(message paho.PublishReceived) (bool, error) {
					say(fmt.Sprintf("%d %s", message.Packet.QoS, message.Packet.Payload))
					return true, nil
				},
			},
		},
	}
	manager, err := autopaho.NewConnection(ctx, config)
	if err != nil {
		log.Fatal(err)
	}
	if err := manager.AwaitConnection(ctx); err != nil {
		log.Fatal(err)
	}
	if role == "sub" {
		var options []paho.SubscribeOptions
		for _, filter := range rest {
			options = append(options, paho.SubscribeOptions{Topic: filter, QoS: 2})
		}
		if _, err := manager.Subscribe(ctx, &paho.Subscribe{Subscriptions: options}); err != nil {
			log.Fatal(err)
		}
		say("subscribed")
		select {}
	}
	qos, err := strconv.Atoi(rest[1])
	if err != nil {
		log.Fatal(err)
	}
	places, all := make(chan struct{}, window), sync.WaitGroup{}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		payload := lines.Text()
		places <- struct{}{}
		all.Add(1)
		go func() {
			defer all.Done()
			defer func() { <-places }()
			for manager.AwaitConnection(ctx) != nil {
			}
			message := paho.Publish{Topic: rest[0], QoS: byte(qos), Payload: []byte(payload)}
			if _, err := manager.Publish(ctx, &message); err == nil {
				say("acknowledged " + payload)
			} else {
				say("unknown " + payload)
			}
		}()
	}
	all.Wait()
	// What is sent again by itself needs the connection.
	select {}
}
