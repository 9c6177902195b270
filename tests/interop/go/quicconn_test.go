package interop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fulmar.example/quicconn"
	"github.com/quic-go/quic-go"
)

// deafSocket receives nothing more once it is deaf.
type deafSocket struct {
	net.PacketConn
	deaf atomic.Bool
}

func (s *deafSocket) ReadFrom(into []byte) (int, net.Addr, error) {
	for {
		count, from, err := s.PacketConn.ReadFrom(into)
		if err != nil || !s.deaf.Load() {
			return count, from, err
		}
	}
}

// connectToDeaf connects to a server that answers nothing from then on.
func connectToDeaf(t *testing.T) *quicconn.Conn {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	socket := &deafSocket{PacketConn: newPort(t)}
	server := &quic.Transport{Conn: socket}
	t.Cleanup(func() {
		server.Close()
		socket.Close()
	})
	listener, err := server.Listen(&tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: key}}, NextProtos: []string{"mqtt"},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := quicconn.Dial(ctx, socket.LocalAddr().String(), &tls.Config{InsecureSkipVerify: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listener.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	<-conn.QUIC.HandshakeComplete()
	socket.deaf.Store(true)
	return conn
}

func sockets(t *testing.T) (count int) {
	t.Helper()
	found, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		if target, _ := os.Readlink("/proc/self/fd/" + file.Name()); strings.HasPrefix(target, "socket:") {
			count++
		}
	}
	return count
}

func TestCloseEndsAMoveThatNobodyAnswers(t *testing.T) {
	conn := connectToDeaf(t)
	before := sockets(t)
	moved := make(chan error, 1)
	go func() { moved <- conn.NetworkChanged(context.Background()) }()
	for until := time.Now().Add(patience); sockets(t) == before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("no new socket")
		}
	}
	closed := make(chan error, 1)
	go func() { closed <- conn.Close() }()
	for range 2 {
		select {
		case err := <-moved:
			if err == nil {
				t.Fatal("the connection has moved")
			}
		case err := <-closed:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatal("Close hangs")
		}
	}
}

func TestMovesThatFailLeaveNoSockets(t *testing.T) {
	conn := connectToDeaf(t)
	defer conn.Close()
	move := func() {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if conn.NetworkChanged(ctx) == nil {
			t.Fatal("the connection has moved")
		}
	}
	move()
	after := sockets(t)
	for range 5 {
		move()
	}
	if found := sockets(t); found != after {
		t.Fatalf("%d sockets after one move that failed, %d after six", after, found)
	}
	if err := conn.QUIC.Context().Err(); err != nil {
		t.Fatalf("the connection has ended: %v", err)
	}
}
