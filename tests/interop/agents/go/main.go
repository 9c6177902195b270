// The agent of Go for client_scenarios.py, which describes what it reads and answers.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"strconv"
	"sync"
	"time"

	"fulmar.example/fulmar"
)

type request struct {
	ID      int
	Do      string
	Client  string
	URL     string
	Options struct {
		ClientID      string `json:"client_id"`
		Username      string
		Password      string
		CAFile        string `json:"ca_file"`
		SessionExpiry int    `json:"session_expiry_s"`
		KeepAlive     int    `json:"keep_alive_s"`
		Longest       int    `json:"reconnect_longest_ms"`
		ByHand        bool   `json:"acknowledge_by_hand"`
		Resume        bool
		Offline       bool
		More          map[string]string
		Will          *struct {
			Topic   string
			Payload []byte
			QoS     byte
			Retain  bool
		}
	}
	message
	Filter  string
	First   int
	Count   int
	Message int
}

type message struct {
	Topic           string      `json:"topic"`
	Payload         string      `json:"payload"`
	QoS             byte        `json:"qos"`
	Retain          bool        `json:"retain"`
	Dup             bool        `json:"dup"`
	ContentType     string      `json:"content_type,omitempty"`
	ResponseTopic   string      `json:"response_topic,omitempty"`
	CorrelationData []byte      `json:"correlation_data,omitempty"`
	Expiry          int         `json:"expiry_s,omitempty"`
	UserProperties  [][2]string `json:"user_properties,omitempty"`
}

func (m *message) publication() fulmar.Message {
	payload, err := base64.StdEncoding.DecodeString(m.Payload)
	if err != nil {
		panic(err)
	}
	message := fulmar.Message{
		Topic: m.Topic, Payload: payload, QoS: m.QoS, Retain: m.Retain, ContentType: m.ContentType, ResponseTopic: m.ResponseTopic,
		CorrelationData: m.CorrelationData, Expiry: time.Duration(m.Expiry) * time.Second,
	}
	for _, pair := range m.UserProperties {
		message.UserProperties = append(message.UserProperties, fulmar.UserProperty{Name: pair[0], Value: pair[1]})
	}
	return message
}

func received(m fulmar.Message) message {
	shown := message{
		Topic: m.Topic, Payload: base64.StdEncoding.EncodeToString(m.Payload), QoS: m.QoS, Retain: m.Retain, Dup: m.Dup,
		ContentType: m.ContentType, ResponseTopic: m.ResponseTopic, CorrelationData: m.CorrelationData, Expiry: int(m.Expiry.Seconds()),
	}
	for _, property := range m.UserProperties {
		shown.UserProperties = append(shown.UserProperties, [2]string{property.Name, property.Value})
	}
	return shown
}

// agent has the clients by name, and what each has received last.
type agent struct {
	mu      sync.Mutex
	clients map[string]*fulmar.Client
	last    map[string][]fulmar.Message
	output  *json.Encoder
	running sync.WaitGroup
}

func (a *agent) answer(id int, result any, err error) {
	answer := map[string]any{"id": id, "result": result}
	var refused *fulmar.Refused
	var disconnected *fulmar.Disconnected
	kind, reason := "other", -1
	switch {
	case errors.As(err, &refused):
		kind, reason = "refused", refused.Reason
	case errors.As(err, &disconnected):
		kind, reason = "disconnected", disconnected.Reason
	case errors.Is(err, fulmar.ErrInvalid):
		kind = "invalid"
	case errors.Is(err, fulmar.ErrClosed):
		kind = "closed"
	}
	if err != nil {
		answer["error"] = map[string]any{"kind": kind, "reason": reason, "text": err.Error()}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.output.Encode(answer)
}

func (a *agent) connect(r *request) error {
	more := r.Options.More
	if more == nil {
		more = map[string]string{}
	}
	for name, value := range map[string]int{"keep_alive_s": r.Options.KeepAlive, "reconnect_longest_ms": r.Options.Longest} {
		if value != 0 {
			more[name] = strconv.Itoa(value)
		}
	}
	options := fulmar.Options{
		ClientID: r.Options.ClientID, Username: r.Options.Username, Password: r.Options.Password, CAFile: r.Options.CAFile,
		SessionExpiry: time.Duration(r.Options.SessionExpiry) * time.Second, Resume: r.Options.Resume, Offline: r.Options.Offline,
		AcknowledgeByHand: r.Options.ByHand, More: more,
	}
	if will := r.Options.Will; will != nil {
		options.Will = &fulmar.Will{Topic: will.Topic, Payload: will.Payload, QoS: will.QoS, Retain: will.Retain}
	}
	client, err := fulmar.Connect(context.Background(), r.URL, options)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clients[r.Client] = client
	return nil
}

// begin starts a request, and returns what waits for its end.
func (a *agent) begin(r *request) func() (any, error) {
	ctx := context.Background()
	a.mu.Lock()
	client := a.clients[r.Client]
	a.mu.Unlock()
	nothing := func(err error) (any, error) { return nil, err }
	switch r.Do {
	case "connect":
		return func() (any, error) { return nil, a.connect(r) }
	case "publish":
		return func() (any, error) { return nothing(client.Publish(ctx, r.publication())) }
	case "publish_numbers":
		return publishNumbers(ctx, client, r)
	case "subscribe":
		return func() (any, error) { return client.Subscribe(ctx, r.Filter, r.QoS) }
	case "unsubscribe":
		return func() (any, error) { return nothing(client.Unsubscribe(ctx, r.Filter)) }
	case "receive":
		return func() (any, error) { return a.receive(ctx, client, r) }
	case "acknowledge":
		return func() (any, error) { return nothing(client.Acknowledge(a.last[r.Client][r.Message])) }
	case "network_changed":
		return func() (any, error) { return nothing(client.NetworkChanged()) }
	case "statistics":
		return func() (any, error) {
			found, err := client.Statistics()
			return map[string]any{
				"transport": found.Transport.String(), "migrations": found.Migrations, "rtt_us": found.RTT.Microseconds(),
			}, err
		}
	case "close":
		return func() (any, error) { return nothing(client.Close()) }
	}
	return func() (any, error) { return nil, errors.New("unknown request") }
}

// publishNumbers publishes numbers as texts, in order and without waiting for each.
func publishNumbers(ctx context.Context, client *fulmar.Client, r *request) func() (any, error) {
	var deliveries []*fulmar.Delivery
	for number := r.First; number < r.First+r.Count; number++ {
		message := fulmar.Message{Topic: r.Topic, Payload: []byte(strconv.Itoa(number)), QoS: r.QoS}
		delivery, err := client.Queue(ctx, message)
		if err != nil {
			return func() (any, error) { return nil, err }
		}
		deliveries = append(deliveries, delivery)
	}
	return func() (any, error) {
		for _, delivery := range deliveries {
			if err := delivery.Wait(ctx); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
}

func (a *agent) receive(ctx context.Context, client *fulmar.Client, r *request) (any, error) {
	messages, shown := []fulmar.Message{}, []message{}
	for m, err := range client.Messages(ctx) {
		if err != nil {
			return nil, err
		}
		messages, shown = append(messages, m), append(shown, received(m))
		if len(messages) == r.Count {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.last[r.Client] = messages
			return shown, nil
		}
	}
	return nil, fulmar.ErrClosed
}

func main() {
	before := runtime.NumGoroutine()
	a := &agent{clients: map[string]*fulmar.Client{}, last: map[string][]fulmar.Message{}, output: json.NewEncoder(os.Stdout)}
	decoder := json.NewDecoder(os.Stdin)
	for {
		var r request
		if decoder.Decode(&r) != nil {
			break
		}
		finish := a.begin(&r)
		a.running.Add(1)
		go func() {
			defer a.running.Done()
			result, err := finish()
			a.answer(r.ID, result, err)
		}()
	}
	a.running.Wait()
	// Every client is closed by now.
	for until := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			fmt.Fprintln(os.Stderr, "goroutines are left:")
			pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			os.Exit(3)
		}
	}
}
