package fulmar

// #cgo pkg-config: libfulmar
// #include <fulmar.h>
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"time"
	"unsafe"
)

// handle is an object of the library: a number, which the library refuses once it is freed.
type handle = C.uint64_t

// call makes a call of the library, and returns its answer or why it failed, which the library keeps per thread.
func call(work func() C.int) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	answer := int(work())
	if answer < 0 {
		return answer, callError(answer)
	}
	return answer, nil
}

// create makes a call that gives a handle.
func create(work func() handle) (handle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	made := work()
	if made == 0 {
		return 0, callError(C.FULMAR_INVALID)
	}
	return made, nil
}

func callError(code int) error {
	cause := map[int]error{C.FULMAR_TIMEOUT: ErrTimeout, C.FULMAR_CLOSED: ErrClosed, C.FULMAR_INVALID: ErrInvalid}[code]
	if cause == nil {
		cause = ErrInternal
	}
	return fmt.Errorf("%w: %s", cause, C.GoString(C.fulmar_error()))
}

// pins keeps memory of Go in its place while the library has it.
type pins struct{ runtime.Pinner }

func (p *pins) bytes(value []byte) *C.uint8_t {
	if len(value) == 0 {
		return nil
	}
	p.Pin(&value[0])
	return (*C.uint8_t)(&value[0])
}

// text is a text for C, where it ends at a zero byte.
func (p *pins) text(name, value string) (*C.char, error) {
	if strings.ContainsRune(value, 0) {
		return nil, fmt.Errorf("%w: %s has a zero byte", ErrInvalid, name)
	}
	return (*C.char)(unsafe.Pointer(p.bytes(append([]byte(value), 0)))), nil
}

func newOptions(url string) (handle, error) {
	var pinned pins
	defer pinned.Unpin()
	text, err := pinned.text("the URL", url)
	if err != nil {
		return 0, err
	}
	return create(func() handle { return C.fulmar_options_new(text) })
}

func setOption(options handle, name string, value []byte) error {
	var pinned pins
	defer pinned.Unpin()
	text, err := pinned.text("the name of an option", name)
	if err != nil {
		return err
	}
	data := unsafe.Pointer(pinned.bytes(append(value, 0)))
	_, err = call(func() C.int { return C.fulmar_options_set(options, text, data, C.size_t(len(value))) })
	return err
}

func connect(options handle) (handle, error) {
	return create(func() handle { return C.fulmar_connect(options) })
}

func free(object handle) { C.fulmar_free(object) }

func eventFD(client handle) (int, error) {
	return call(func() C.int { return C.fulmar_event_fd(client) })
}

// publish queues a message, if there is room at once.
func publish(client handle, message *Message, token uint64) error {
	var pinned pins
	defer pinned.Unpin()
	topic, err := pinned.text("the topic", message.Topic)
	if err != nil {
		return err
	}
	properties := message.properties(&pinned)
	c := C.struct_fulmar_message{
		topic: topic, payload: unsafe.Pointer(pinned.bytes(message.Payload)), payload_size: C.size_t(len(message.Payload)),
		qos: C.uint8_t(message.QoS), retain: C.bool(message.Retain), property_count: C.size_t(len(properties)),
	}
	if len(properties) > 0 {
		pinned.Pin(&properties[0])
		c.properties = &properties[0]
	}
	_, err = call(func() C.int { return C.fulmar_publish(client, &c, C.uint64_t(token), 0) })
	return err
}

// properties has the message's in the form of the library (MQTT 5.0, section 3.3.2.3).
func (m *Message) properties(pinned *pins) []C.struct_fulmar_property {
	var list []C.struct_fulmar_property
	add := func(id byte, name string, value []byte, number uint32) {
		list = append(list, C.struct_fulmar_property{
			id: C.uint8_t(id), number: C.uint32_t(number),
			name: pinned.bytes([]byte(name)), name_size: C.size_t(len(name)),
			value: pinned.bytes(value), value_size: C.size_t(len(value)),
		})
	}
	if m.Expiry > 0 {
		add(idExpiry, "", nil, uint32(min(wholeSeconds(m.Expiry), 1<<32-1)))
	}
	if m.ContentType != "" {
		add(idContentType, "", []byte(m.ContentType), 0)
	}
	if m.ResponseTopic != "" {
		add(idResponseTopic, "", []byte(m.ResponseTopic), 0)
	}
	if m.CorrelationData != nil {
		add(idCorrelationData, "", m.CorrelationData, 0)
	}
	for _, property := range m.UserProperties {
		add(idUserProperty, property.Name, []byte(property.Value), 0)
	}
	return list
}

func subscribe(client handle, filter string, options byte, token uint64) error {
	var pinned pins
	defer pinned.Unpin()
	text, err := pinned.text("the filter", filter)
	if err != nil {
		return err
	}
	_, err = call(func() C.int { return C.fulmar_subscribe(client, text, C.uint8_t(options), C.uint64_t(token)) })
	return err
}

func unsubscribe(client handle, filter string, token uint64) error {
	var pinned pins
	defer pinned.Unpin()
	text, err := pinned.text("the filter", filter)
	if err != nil {
		return err
	}
	_, err = call(func() C.int { return C.fulmar_unsubscribe(client, text, C.uint64_t(token)) })
	return err
}

// event is one of the library's, copied.
type event struct {
	Event
	message Message
	token   uint64
}

// next takes an event, if there is one; false if not.
func next(client handle) (event, bool, error) {
	var c C.struct_fulmar_event
	taken, err := call(func() C.int { return C.fulmar_next(client, &c, 0) })
	if taken <= 0 {
		return event{}, false, err
	}
	received := event{token: uint64(c.token), Event: Event{
		Kind: EventKind(c.kind), Reason: int(c.reason), Text: C.GoString(c.text), Transport: Transport(c.transport),
		SessionPresent: bool(c.session_present), EarlyData: bool(c.early_data),
		RetryIn: time.Duration(c.retry_in) * time.Millisecond, GaveUp: c.retry_in < 0,
	}}
	if c.kind == C.FULMAR_MESSAGE {
		received.message = receivedMessage(&c)
	}
	return received, true, nil
}

func receivedMessage(c *C.struct_fulmar_event) Message {
	message := Message{
		Topic: C.GoString(c.topic), Payload: C.GoBytes(unsafe.Pointer(c.payload), C.int(c.payload_size)),
		QoS: byte(c.qos), Retain: bool(c.retain), Dup: bool(c.dup), receipt: uint64(c.receipt),
	}
	for _, property := range unsafe.Slice(c.properties, c.property_count) {
		name := C.GoStringN((*C.char)(unsafe.Pointer(property.name)), C.int(property.name_size))
		value := C.GoBytes(unsafe.Pointer(property.value), C.int(property.value_size))
		switch property.id {
		case idExpiry:
			message.Expiry = time.Duration(property.number) * time.Second
		case idContentType:
			message.ContentType = string(value)
		case idResponseTopic:
			message.ResponseTopic = string(value)
		case idCorrelationData:
			message.CorrelationData = value
		case idUserProperty:
			message.UserProperties = append(message.UserProperties, UserProperty{name, string(value)})
		}
	}
	return message
}

func acknowledge(client handle, receipt uint64) error {
	_, err := call(func() C.int { return C.fulmar_acknowledge(client, C.uint64_t(receipt)) })
	return err
}

func networkChanged(client handle) error {
	_, err := call(func() C.int { return C.fulmar_network_changed(client) })
	return err
}

func path(client handle) (Statistics, error) {
	var c C.struct_fulmar_path
	_, err := call(func() C.int { return C.fulmar_path(client, &c) })
	return Statistics{
		Transport: Transport(c.transport), EarlyData: bool(c.early_data), RTT: time.Duration(c.rtt_us) * time.Microsecond,
		LostPackets: uint64(c.lost_packets), SentBytes: uint64(c.sent_bytes), ReceivedBytes: uint64(c.received_bytes),
		Migrations: int(c.migrations), ServerMoves: int(c.server_moves),
	}, err
}

func disconnect(client handle) error {
	_, err := call(func() C.int { return C.fulmar_disconnect(client, -1) })
	return err
}
