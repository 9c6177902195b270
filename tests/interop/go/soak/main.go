// A client of the soak test: Eclipse Paho's autopaho over quic-go, with a session that outlives connections.
//
//	soak sub NAME ADDRESSES CA-FILE FILTER...   prints each message as `QOS PAYLOAD`
//	soak pub NAME ADDRESSES CA-FILE TOPIC QOS   publishes each line of standard input, prints `acknowledged LINE`
//
// ADDRESSES is a list with commas; the first that answers is used. Line n, from 0, is one of the (n modulo 16)-th lane,
// which publishes one after the other; %d in TOPIC is the lane's number.
//
// A line of which that is not known, because the connection broke, is `unknown`: autopaho sends it again by itself.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/autopaho"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/quic-go/quic-go"
)

// window is how many publications are under way at once, one of each lane.
const window = 16

// turn is how long one address is waited for before the next is tried as well.
const turn = 100 * time.Millisecond

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
	settings := &quic.Config{KeepAlivePeriod: 300 * time.Millisecond, MaxIdleTimeout: idle()}
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

// idle is after how much silence a connection has ended: SOAK_IDLE, or 5 s.
func idle() time.Duration {
	if found, err := time.ParseDuration(os.Getenv("SOAK_IDLE")); err == nil {
		return found
	}
	return 5 * time.Second
}

// dialFirst tries the addresses one soon after the other, from another one on each time, and keeps what answers first:
// only one node of a cluster does, and a packet to one that does not listen is lost in silence.
func dialFirst(ctx context.Context, addresses []string, from int, config *tls.Config) (net.Conn, error) {
	type result struct {
		connection net.Conn
		err        error
	}
	results := make(chan result, len(addresses))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for index := range addresses {
		go func() {
			select {
			case <-time.After(time.Duration(index) * turn):
			case <-ctx.Done():
			}
			connection, err := dial(ctx, addresses[(from+index)%len(addresses)], config)
			results <- result{connection, err}
		}()
	}
	var failed error
	for left := len(addresses); left > 0; left-- {
		got := <-results
		if got.err == nil {
			go func() {
				// The others would be connections that nobody uses.
				for range left - 1 {
					if other := <-results; other.err == nil {
						_ = other.connection.Close()
					}
				}
			}()
			return got.connection, nil
		}
		failed = got.err
	}
	return nil, failed
}

func main() {
	if len(os.Args) < 6 {
		log.Fatal("soak sub|pub NAME ADDRESSES CA-FILE FILTER...|TOPIC QOS")
	}
	role, name, addresses, rest := os.Args[1], os.Args[2], strings.Split(os.Args[3], ","), os.Args[5:]
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
	attempts := 0
	config := autopaho.ClientConfig{
		ServerUrls:            []*url.URL{{Scheme: "quic", Host: addresses[0]}},
		KeepAlive:             5,
		SessionExpiryInterval: 0xffffffff,
		ReconnectBackoff:      autopaho.NewConstantBackoff(50 * time.Millisecond),
		ConnectTimeout:        3 * time.Second,
		AttemptConnection: func(ctx context.Context, _ autopaho.ClientConfig, _ *url.URL) (net.Conn, error) {
			attempts++
			return dialFirst(ctx, addresses, attempts, tlsConfig)
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
	lanes, all := make([]chan string, window), sync.WaitGroup{}
	for lane := range lanes {
		lanes[lane] = make(chan string)
		topic := strings.ReplaceAll(rest[0], "%d", strconv.Itoa(lane))
		all.Go(func() {
			for payload := range lanes[lane] {
				message := paho.Publish{Topic: topic, QoS: byte(qos), Payload: []byte(payload)}
				var err error
				for {
					for manager.AwaitConnection(ctx) != nil {
					}
					_, err = manager.Publish(ctx, &message)
					// It was not sent, and would not be.
					if !errors.Is(err, autopaho.ConnectionDownError) {
						break
					}
				}
				if err == nil {
					say("acknowledged " + payload)
				} else {
					say("unknown " + payload)
				}
			}
		})
	}
	lines := bufio.NewScanner(os.Stdin)
	for number := 0; lines.Scan(); number++ {
		lanes[number%window] <- lines.Text()
	}
	for _, lane := range lanes {
		close(lane)
	}
	all.Wait()
	// What is sent again by itself needs the connection.
	select {}
}
