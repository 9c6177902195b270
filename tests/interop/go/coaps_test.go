// CoAP over DTLS with a connection ID (RFC 9146), by pion's DTLS: the client's address changes and its session stays.
//
// ../test_coap.py names the server in FULMAR_COAPS, and the key of meter-8 in FULMAR_COAP_KEY or the files of a certificate
// and its key in FULMAR_CERT and FULMAR_CERT_KEY.
package interop

import (
	"bytes"
	"crypto/tls"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pion/dtls/v3"
)

// wanderer is a socket that can be exchanged for one at another port.
type wanderer struct {
	mutex  sync.Mutex
	socket net.PacketConn
	closed bool
	// What was sent last.
	last []byte
}

func newPort(t *testing.T) net.PacketConn {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return socket
}

func (w *wanderer) now() (net.PacketConn, bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.socket, w.closed
}

// move loses the old port: what still comes there is refused.
func (w *wanderer) move(t *testing.T) {
	next := newPort(t)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.socket.Close()
	w.socket = next
}

func (w *wanderer) ReadFrom(into []byte) (int, net.Addr, error) {
	for {
		socket, closed := w.now()
		count, from, err := socket.ReadFrom(into)
		if err == nil || closed {
			return count, from, err
		}
		if after, _ := w.now(); after == socket {
			return count, from, err
		}
	}
}

func (w *wanderer) WriteTo(data []byte, to net.Addr) (int, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.last = bytes.Clone(data)
	return w.socket.WriteTo(data, to)
}

// impersonate sends, from a port of somebody else's, what was sent last: as it was, and as if it were newer.
func (w *wanderer) impersonate(t *testing.T, server net.Addr) {
	w.mutex.Lock()
	replayed := bytes.Clone(w.last)
	w.mutex.Unlock()
	forged := bytes.Clone(replayed)
	// The end of the record's number (RFC 9146 section 4).
	forged[10] += 100
	somebody := newPort(t)
	defer somebody.Close()
	for _, datagram := range [][]byte{replayed, forged} {
		if _, err := somebody.WriteTo(datagram, server); err != nil {
			t.Fatal(err)
		}
	}
}

func (w *wanderer) Close() error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.closed = true
	return w.socket.Close()
}

func (w *wanderer) LocalAddr() net.Addr {
	socket, _ := w.now()
	return socket.LocalAddr()
}

func (w *wanderer) SetDeadline(time.Time) error      { return nil }
func (w *wanderer) SetReadDeadline(time.Time) error  { return nil }
func (w *wanderer) SetWriteDeadline(time.Time) error { return nil }

const (
	methodGet  = 0x01
	methodPut  = 0x03
	changed    = 0x44
	content    = 0x45
	pathOfTest = "wanders"
)

// question is a confirmable message to /ps/wanders; a GET observes it (RFC 7252 section 3, RFC 7641 section 2).
func question(method, id byte, payload string) []byte {
	message := []byte{0x41, method, 0, id, id}
	// Uri-Path is option 11, Observe 6.
	path := byte(11 << 4)
	if method == methodGet {
		message = append(message, 6<<4)
		path = 5 << 4
	}
	message = append(message, path|2, 'p', 's', byte(len(pathOfTest)))
	message = append(message, pathOfTest...)
	if payload != "" {
		message = append(append(message, 0xff), payload...)
	}
	return message
}

// hear reads until a message has this token, code and end, and acknowledges what asks for that.
func hear(t *testing.T, conn net.Conn, token, code byte, payload string) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	room := make([]byte, 2048)
	for {
		count, err := conn.Read(room)
		if err != nil {
			t.Fatalf("waiting for %q: %v", payload, err)
		}
		message := room[:count]
		if message[0]>>4&3 == 0 {
			if _, err := conn.Write([]byte{0x60, 0, message[2], message[3]}); err != nil {
				t.Fatal(err)
			}
		}
		answers := count > 4 && message[0]&15 == 1 && message[4] == token && message[1] == code
		if answers && bytes.HasSuffix(message, []byte(payload)) {
			return
		}
	}
}

func say(t *testing.T, conn net.Conn, message []byte) {
	t.Helper()
	if _, err := conn.Write(message); err != nil {
		t.Fatal(err)
	}
}

func shakeHands(t *testing.T, socket net.PacketConn, server net.Addr, options []dtls.ClientOption) net.Conn {
	t.Helper()
	conn, err := dtls.ClientWithOptions(socket, server, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.HandshakeContext(withPatience(t)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// wander observes a value and changes it, and does so again from other addresses.
func wander(t *testing.T, suite dtls.CipherSuiteID, more ...dtls.ClientOption) {
	server, err := net.ResolveUDPAddr("udp", os.Getenv("FULMAR_COAPS"))
	if err != nil {
		t.Fatal(err)
	}
	options := append(more,
		dtls.WithCipherSuites(suite),
		dtls.WithExtendedMasterSecret(dtls.RequireExtendedMasterSecret),
		dtls.WithConnectionIDGenerator(dtls.OnlySendCIDGenerator()),
	)
	socket := &wanderer{socket: newPort(t)}
	conn := shakeHands(t, socket, server, options)
	say(t, conn, question(methodGet, 1, ""))
	hear(t, conn, 1, content, "")
	for id, payload := range []string{"at home", "elsewhere", "far away"} {
		if id > 0 {
			socket.move(t)
		}
		token := byte(id + 2)
		say(t, conn, question(methodPut, token, payload))
		hear(t, conn, token, changed, "")
	}
	// The observation came along, and nobody else leads it away.
	socket.impersonate(t, server)
	other := shakeHands(t, newPort(t), server, options)
	say(t, other, question(methodPut, 9, "the last"))
	hear(t, other, 9, changed, "")
	hear(t, conn, 1, content, "the last")
}

func TestCoapsSessionsStayWhenTheAddressChanges(t *testing.T) {
	if os.Getenv("FULMAR_COAPS") == "" {
		t.Skip("test_coap.py runs it")
	}
	t.Run("key", func(t *testing.T) {
		key := func([]byte) ([]byte, error) { return []byte(setting(t, "FULMAR_COAP_KEY")), nil }
		wander(t, dtls.TLS_PSK_WITH_AES_128_CCM_8, dtls.WithPSK(key), dtls.WithPSKIdentityHint([]byte("meter-8")))
	})
	for _, suite := range []dtls.CipherSuiteID{
		dtls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
		dtls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
	} {
		t.Run(suite.String(), func(t *testing.T) {
			trusted := configuration(t)
			options := []dtls.ClientOption{dtls.WithRootCAs(trusted.RootCAs), dtls.WithServerName("localhost")}
			if file := os.Getenv("FULMAR_CERT"); file != "" {
				own, err := tls.LoadX509KeyPair(file, setting(t, "FULMAR_CERT_KEY"))
				if err != nil {
					t.Fatal(err)
				}
				options = append(options, dtls.WithCertificates(own))
			}
			wander(t, suite, options...)
		})
	}
}
