// Package quicconn is MQTT over QUIC as a net.Conn, for clients that bring none: Eclipse Paho's and others. It is one
// bidirectional stream of a connection with the ALPN "mqtt", by quic-go.
//
//	AttemptConnection: func(ctx context.Context, _ autopaho.ClientConfig, url *url.URL) (net.Conn, error) {
//		conn, err := quicconn.Dial(ctx, url.Host, &tls.Config{}, nil)
//		if err != nil {
//			return nil, err
//		}
//		return packets.NewThreadSafeConn(conn), nil
//	},
package quicconn

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

// keepAlive is the time after which a silent connection sends a packet, or routers would forget its address.
const keepAlive = 12 * time.Second

// closeTimeout is how long Close waits for the server to have read what was sent.
const closeTimeout = time.Second

// Conn is the first stream of a QUIC connection.
type Conn struct {
	*quic.Stream
	// QUIC is the connection, for statistics and further streams.
	QUIC *quic.Conn

	mu sync.Mutex
	// sockets are those that the connection has used. They are closed with it: it ends with any of them.
	sockets []*quic.Transport
	// spare is one of them that the connection has not moved to: the next attempt uses it.
	spare *quic.Transport
	once  sync.Once
}

// Dial connects to HOST:PORT. The configurations may be nil; the ALPN is set here, and so are a server name and a keep-alive
// if there are none.
func Dial(ctx context.Context, address string, tlsConfig *tls.Config, config *quic.Config) (*Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if tlsConfig == nil {
		tlsConfig = &tls.Config{}
	}
	if tlsConfig = tlsConfig.Clone(); tlsConfig.ServerName == "" {
		tlsConfig.ServerName = host
	}
	tlsConfig.NextProtos = []string{"mqtt"}
	if config == nil {
		config = &quic.Config{}
	}
	if config = config.Clone(); config.KeepAlivePeriod == 0 {
		config.KeepAlivePeriod = keepAlive
	}
	server, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return nil, err
	}
	conn := &Conn{}
	// With a socket that quic-go makes, the connection could not move to another.
	socket, err := conn.open()
	if err == nil {
		conn.QUIC, err = socket.Dial(ctx, server, tlsConfig, config)
	}
	if err == nil {
		conn.Stream, err = conn.QUIC.OpenStreamSync(ctx)
	}
	if err != nil {
		conn.free()
		return nil, err
	}
	return conn, nil
}

func (c *Conn) open() (*quic.Transport, error) {
	udp, err := net.ListenUDP("udp", nil)
	if err != nil {
		return nil, err
	}
	socket := &quic.Transport{Conn: udp}
	c.sockets = append(c.sockets, socket)
	return socket, nil
}

// free ends the connection and closes its sockets.
func (c *Conn) free() {
	if c.QUIC != nil {
		c.QUIC.CloseWithError(0, "")
	}
	for _, socket := range c.sockets {
		socket.Close()
		socket.Conn.Close()
	}
}

// NetworkChanged moves the connection to a new socket, as after a change of the machine's network: the server sees another
// address, and what is in flight goes on. If it fails, the connection stays where it is.
func (c *Conn) NetworkChanged(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.QUIC.Context().Err(); err != nil {
		return err
	}
	socket := c.spare
	if socket == nil {
		var err error
		if socket, err = c.open(); err != nil {
			return err
		}
		c.spare = socket
	}
	path, err := c.QUIC.AddPath(socket)
	if err != nil {
		return err
	}
	// A connection that has ended answers no probe.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(c.QUIC.Context(), func() { cancel(context.Cause(c.QUIC.Context())) })
	defer stop()
	if err := path.Probe(ctx); err != nil {
		path.Close()
		return err
	}
	if err := path.Switch(); err != nil {
		return err
	}
	c.spare = nil
	return nil
}

// LocalAddr returns the address of the connection's first socket.
func (c *Conn) LocalAddr() net.Addr { return c.QUIC.LocalAddr() }

// RemoteAddr returns the server's address.
func (c *Conn) RemoteAddr() net.Addr { return c.QUIC.RemoteAddr() }

// Close ends the stream and then, when the server has had time to read what was in it, the connection: CloseWithError
// throws away what has not been sent.
func (c *Conn) Close() error {
	c.once.Do(func() {
		c.Stream.Close()
		c.Stream.SetReadDeadline(time.Now())
		select {
		case <-c.QUIC.Context().Done():
		case <-time.After(closeTimeout):
		}
		// It ends a probe, too, and with it what has the lock.
		c.QUIC.CloseWithError(0, "")
		c.mu.Lock()
		defer c.mu.Unlock()
		c.free()
	})
	return nil
}
