// Package interop talks MQTT over QUIC to a Fulmar broker through quic-go, a QUIC stack that shares no
// code with the broker's.
//
// This file dials, and holds what the tests share; paho_test.go has Eclipse Paho's clients on the control
// stream, raw_test.go what Paho knows nothing of: data streams, 0-RTT, a change of address.
//
// It starts no broker: ../test_quic_go.py does, and names its addresses in FULMAR_QUIC, FULMAR_HTTP, FULMAR_WS
// and FULMAR_WSS and its authority's certificate in FULMAR_CA.
package interop

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"fulmar.example/quicconn"
	"github.com/quic-go/quic-go"
)

// patience is far above what anything here takes on a busy machine.
const patience = 60 * time.Second

// setting gives an environment variable that test_quic_go.py sets.
func setting(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set; run `make test-interop`", name)
	}
	return value
}

// withPatience gives a context that ends with the test, or when it takes too long.
func withPatience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// configuration trusts the broker's authority and nobody else.
func configuration(t *testing.T) *tls.Config {
	t.Helper()
	pem, err := os.ReadFile(setting(t, "FULMAR_CA"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate in FULMAR_CA")
	}
	return &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"mqtt"}}
}

func brokerAddress(t *testing.T) *net.UDPAddr {
	t.Helper()
	address, err := net.ResolveUDPAddr("udp", setting(t, "FULMAR_QUIC"))
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// socket gives a quic-go transport on a socket of its own at this local address.
func socket(t *testing.T, ip string) *quic.Transport {
	t.Helper()
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err != nil {
		t.Fatal(err)
	}
	transport := &quic.Transport{Conn: udp}
	t.Cleanup(func() {
		transport.Close()
		udp.Close()
	})
	return transport
}

// dial opens a QUIC connection and its control stream.
func dial(ctx context.Context, address *net.UDPAddr, config *tls.Config) (*quicconn.Conn, error) {
	return quicconn.Dial(ctx, address.String(), config, nil)
}

// metric reads one of the broker's counters.
func metric(t *testing.T, name string) int {
	t.Helper()
	answer, err := http.Get("http://" + setting(t, "FULMAR_HTTP") + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(body), "\n") {
		var value int
		if _, err := fmt.Sscanf(line, name+" %d", &value); err == nil {
			return value
		}
	}
	t.Fatalf("no %s in the broker's metrics", name)
	return 0
}

// inbox gathers messages from whatever goroutine they come on.
type inbox struct {
	mu      sync.Mutex
	texts   []string
	changed chan struct{}
}

func newInbox() *inbox {
	return &inbox{changed: make(chan struct{}, 1)}
}

func (i *inbox) put(text string) {
	i.mu.Lock()
	i.texts = append(i.texts, text)
	i.mu.Unlock()
	select {
	case i.changed <- struct{}{}:
	default:
	}
}

// until waits for a message and gives all that came before it.
func (i *inbox) until(t *testing.T, ctx context.Context, last string) []string {
	t.Helper()
	for {
		i.mu.Lock()
		for at, text := range i.texts {
			if text == last {
				before := i.texts[:at]
				i.mu.Unlock()
				return before
			}
		}
		count := len(i.texts)
		i.mu.Unlock()
		select {
		case <-i.changed:
		case <-ctx.Done():
			t.Fatalf("waited too long for %q after %d messages", last, count)
		}
	}
}
