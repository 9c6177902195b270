// SCRAM-SHA-256 as MQTT 5.0's enhanced authentication, with Eclipse Paho's client and xdg-go's SCRAM.
package interop

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/xdg-go/scram"
)

const mechanism = "SCRAM-SHA-256"

// exchange is one authentication; paho calls it for each AUTH.
type exchange struct {
	*scram.ClientConversation
	err error
	end chan struct{}
}

func newExchange(t *testing.T, user, password string) *exchange {
	t.Helper()
	client, err := scram.SHA256.NewClient(user, password, "")
	if err != nil {
		t.Fatal(err)
	}
	return &exchange{ClientConversation: client.NewConversation(), end: make(chan struct{}, 1)}
}

func (e *exchange) step(data []byte) []byte {
	answer, err := e.Step(string(data))
	if err != nil {
		e.err = err
	}
	return []byte(answer)
}

func (e *exchange) Authenticate(auth *paho.Auth) *paho.Auth {
	answer := e.step(auth.Properties.AuthData)
	return &paho.Auth{
		ReasonCode: packets.AuthContinueAuthentication,
		Properties: &paho.AuthProperties{AuthMethod: mechanism, AuthData: answer},
	}
}

func (e *exchange) Authenticated() {
	e.end <- struct{}{}
}

// signIn connects; with the broker's last message, xdg-go has seen that the broker knows the user.
func signIn(t *testing.T, connection net.Conn, user, password string) (*paho.Client, *exchange, *paho.Connack, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	exchange := newExchange(t, user, password)
	client := paho.NewClient(paho.ClientConfig{Conn: packets.NewThreadSafeConn(connection), AuthHandler: exchange})
	connack, err := client.Connect(ctx, &paho.Connect{
		ClientID:   "go-scram",
		CleanStart: true,
		Properties: &paho.ConnectProperties{AuthMethod: mechanism, AuthData: exchange.step(nil)},
	})
	return client, exchange, connack, errors.Join(err, exchange.err)
}

func TestScram(t *testing.T) {
	password := os.Getenv("FULMAR_SCRAM_PASSWORD")
	if password == "" {
		t.Skip("another run has a broker with SCRAM")
	}
	dials := map[string]func() (net.Conn, error){
		"TCP": func() (net.Conn, error) { return net.Dial("tcp", os.Getenv("FULMAR_MQTT")) },
		"QUIC": func() (net.Conn, error) {
			return dial(context.Background(), brokerAddress(t), configuration(t))
		},
	}
	for name, dial := range dials {
		t.Run(name, func(t *testing.T) {
			open := func() net.Conn {
				connection, err := dial()
				if err != nil {
					t.Fatal(err)
				}
				return connection
			}
			client, exchange, connack, err := signIn(t, open(), "ann", password)
			if err != nil {
				t.Fatal(err)
			}
			exchange.step(connack.Properties.AuthData)
			if exchange.err != nil || !exchange.Valid() {
				t.Fatalf("the broker has not shown that it knows the user: %v", exchange.err)
			}
			again(t, client, exchange, password)
			for user, password := range map[string]string{"ann": "wrong", "nobody": password} {
				_, exchange, connack, err := signIn(t, open(), user, password)
				if err == nil || exchange.err != nil || connack == nil || connack.ReasonCode != 0x86 {
					t.Fatalf("%s: %v, %v", user, connack, err)
				}
			}
		})
	}
}

// again authenticates a client that is connected (section 4.12.1).
func again(t *testing.T, client *paho.Client, handler *exchange, password string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	handler.ClientConversation = newExchange(t, "ann", password).ClientConversation
	response, err := client.Authenticate(ctx, &paho.Auth{
		ReasonCode: packets.AuthReauthenticate,
		Properties: &paho.AuthProperties{AuthMethod: mechanism, AuthData: handler.step(nil)},
	})
	if err != nil || !response.Success {
		t.Fatalf("%v, %v", response, err)
	}
	if handler.err != nil {
		t.Fatal(handler.err)
	}
	if err := client.Disconnect(&paho.Disconnect{}); err != nil {
		t.Fatal(err)
	}
}
