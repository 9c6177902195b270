package fulmar

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Errors of a call, for errors.Is.
var (
	// ErrInvalid is an argument that cannot be used.
	ErrInvalid = errors.New("invalid")
	// ErrTimeout says that it did not happen in time.
	ErrTimeout = errors.New("timeout")
	// ErrClosed says that the client is closed.
	ErrClosed = errors.New("closed")
	// ErrInternal is a fault of the library.
	ErrInternal = errors.New("internal error")
)

// Refused says that the server has refused a request or a connection.
type Refused struct {
	// Reason is the server's reason code, or -1 where it gave none.
	Reason int
	Text   string
}

func (r *Refused) Error() string {
	if r.Text == "" {
		return fmt.Sprintf("refused with reason code 0x%02x", r.Reason)
	}
	return r.Text
}

// Disconnected says that the client has given up: the server ended it for good, or it was not to connect again.
type Disconnected struct {
	// Reason is the server's reason code, or -1 where it gave none.
	Reason int
	Text   string
}

func (d *Disconnected) Error() string { return d.Text }

// UserProperty is a pair that the application defines.
type UserProperty struct{ Name, Value string }

// Message is a message to publish, or a received one, with its properties (MQTT 5.0).
type Message struct {
	Topic   string
	Payload []byte
	// QoS is 0, 1 or 2.
	QoS    byte
	Retain bool
	// Dup says that a received message may have been received before.
	Dup             bool
	ContentType     string
	ResponseTopic   string
	CorrelationData []byte
	// Expiry is how long the message is of use, in seconds of MQTT; 0 without end.
	Expiry         time.Duration
	UserProperties []UserProperty
	receipt        uint64
}

// size is about how many bytes it has.
func (m *Message) size() int {
	size := len(m.Topic) + len(m.Payload) + len(m.ContentType) + len(m.ResponseTopic) + len(m.CorrelationData)
	for _, property := range m.UserProperties {
		size += len(property.Name) + len(property.Value)
	}
	return size
}

// Identifiers of properties.
const (
	idExpiry          = 0x02
	idContentType     = 0x03
	idResponseTopic   = 0x08
	idCorrelationData = 0x09
	idUserProperty    = 0x26
)

// Transport is a protocol below MQTT.
type Transport uint8

// Transports.
const (
	TCP Transport = iota
	TLS
	QUIC
	WebSocket
	SecureWebSocket
)

// String gives the scheme of its URLs.
func (t Transport) String() string {
	if schemes := [...]string{"mqtt", "mqtts", "quic", "ws", "wss"}; int(t) < len(schemes) {
		return schemes[t]
	}
	return strconv.Itoa(int(t))
}

// EventKind says what has happened to the connection.
type EventKind uint32

// Kinds of events.
const (
	// Connected: the server has accepted the client.
	Connected EventKind = 1
	// Lost: the connection has ended, or an attempt has failed.
	Lost EventKind = 2

	kindMessage      EventKind = 3
	kindPublished    EventKind = 4
	kindSubscribed   EventKind = 5
	kindUnsubscribed EventKind = 6

	// Migrated: QUIC goes on from another local address, Text.
	Migrated EventKind = 7
	// MayRepeat: the server has lost the session; publications at QoS 2 may arrive twice.
	MayRepeat EventKind = 8
)

// Event is news of the connection.
type Event struct {
	Kind EventKind
	// Reason is the server's reason code, or -1.
	Reason int
	Text   string
	// Transport, SessionPresent and EarlyData are those of a new connection.
	Transport                 Transport
	SessionPresent, EarlyData bool
	// RetryIn is when the client tries again, unless it GaveUp.
	RetryIn time.Duration
	GaveUp  bool
}

// Statistics are those of the connection's path; all but Transport of QUIC only.
type Statistics struct {
	Transport                             Transport
	EarlyData                             bool
	RTT                                   time.Duration
	LostPackets, SentBytes, ReceivedBytes uint64
	// Migrations counts changes of the client's address, ServerMoves those of the server's.
	Migrations, ServerMoves int
}

// Will is the message that the server publishes when the client is lost.
type Will struct {
	Topic   string
	Payload []byte
	QoS     byte
	Retain  bool
	Delay   time.Duration
}

// Options of a client; what is zero has the library's default.
type Options struct {
	ClientID, Username, Password string
	// SCRAM signs in without sending the password.
	SCRAM bool
	// Resume continues the session of this ClientID; without, the first connection begins a new one.
	Resume bool
	// SessionExpiry is how long the server keeps the session without a connection.
	SessionExpiry time.Duration
	// CAFile has the authorities to trust, and no others (PEM).
	CAFile string
	// CertificateFile and KeyFile are the client's own (PEM).
	CertificateFile, KeyFile string
	// FallbackPort is that of TLS over TCP, tried beside QUIC.
	FallbackPort int
	Will         *Will
	// AcknowledgeByHand leaves it to Client.Acknowledge to acknowledge messages at QoS 1.
	AcknowledgeByHand bool
	// Offline lets Connect return without a connection: what is published waits for one.
	Offline bool
	// More has further options of fulmar.h by their names, such as "streams": "topic".
	More map[string]string
	// OnEvent gets news of the connection; it must neither block nor close the client.
	OnEvent func(Event)
}

// apply sets them in an object of the library.
func (o *Options) apply(options handle) error {
	var failed error
	set := func(name, value string) {
		if failed == nil {
			failed = setOption(options, name, []byte(value))
		}
	}
	for name, value := range map[string]string{
		"client_id": o.ClientID, "username": o.Username, "password": o.Password, "ca_file": o.CAFile,
		"certificate_file": o.CertificateFile, "key_file": o.KeyFile,
	} {
		if value != "" {
			set(name, value)
		}
	}
	for name, value := range map[string]bool{"scram": o.SCRAM, "acknowledge_by_hand": o.AcknowledgeByHand} {
		if value {
			set(name, "1")
		}
	}
	if o.Resume {
		set("clean_start", "0")
	}
	if o.SessionExpiry > 0 {
		set("session_expiry_s", seconds(o.SessionExpiry))
	}
	if o.FallbackPort != 0 {
		set("fallback_port", strconv.Itoa(o.FallbackPort))
	}
	if will := o.Will; will != nil {
		set("will_topic", will.Topic)
		set("will_payload", string(will.Payload))
		set("will_qos", strconv.Itoa(int(will.QoS)))
		set("will_retain", strconv.FormatBool(will.Retain))
		set("will_delay_s", seconds(will.Delay))
	}
	for name, value := range o.More {
		set(name, value)
	}
	return failed
}

func seconds(span time.Duration) string { return strconv.FormatInt(wholeSeconds(span), 10) }

// wholeSeconds are those of MQTT, rounded up: a short time is not none.
func wholeSeconds(span time.Duration) int64 {
	whole := int64(span / time.Second)
	if span%time.Second > 0 {
		whole++
	}
	return whole
}
