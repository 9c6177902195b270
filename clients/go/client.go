// Package fulmar is an MQTT 5.0 and 3.1.1 client over QUIC, TLS, TCP and WebSocket, by libfulmar.
//
//	client, err := fulmar.Connect(ctx, "quic://localhost", fulmar.Options{})
//	...
//	defer client.Close()
//	err = client.Publish(ctx, fulmar.Message{Topic: "plant/temperature", Payload: []byte("21.5"), QoS: 1})
//
// A client reconnects by itself, keeps what is queued meanwhile, and subscribes again if the server has lost the session.
package fulmar

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"sync"
	"syscall"
	"time"
)

// maxMessages wait for the application before the client reads no further ones, unless a result may stand behind them.
const maxMessages = 1000

// maxBacklog messages may wait, and this many bytes of them, whatever stands behind them.
const (
	maxBacklog      = 10_000
	maxBacklogBytes = 64 << 20
)

// errBacklog fails requests whose results cannot be read.
var errBacklog = fmt.Errorf("%w: 10,000 received messages or 64 MiB wait, and results behind them: receive messages first", ErrTimeout)

// queuePoll is the time between attempts to queue a message while the queue is full.
const queuePoll = 10 * time.Millisecond

// Client is a client of one broker. Its methods may be called by several goroutines.
type Client struct {
	handle handle
	events *os.File
	hook   func(Event)

	mu sync.Mutex
	// changed is closed, and replaced, when what is below has changed.
	changed  chan struct{}
	messages []Message
	// messageBytes are those of messages.
	messageBytes int
	waiting      map[uint64]chan result
	token        uint64
	// closing says that Close has begun.
	closing bool
	// ended is why no more events come.
	ended error
	// connected has the outcome of the first attempt.
	connected chan error
	// done is closed when no goroutine of the client runs any more.
	done chan struct{}
}

// result is the server's answer to a request.
type result struct {
	reason int
	err    error
}

// Delivery is a request that waits for its result.
type Delivery struct {
	client *Client
	token  uint64
	result chan result
}

// Wait returns when the server has a message at QoS 1 or 2, one at QoS 0 is sent, or the server has refused it. If the
// context ends first, the message may still be delivered.
func (d *Delivery) Wait(ctx context.Context) error {
	_, err := d.wait(ctx)
	return err
}

func (d *Delivery) wait(ctx context.Context) (int, error) {
	select {
	case result := <-d.result:
		d.result <- result
		return result.reason, result.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (d *Delivery) forget() {
	d.client.change(func() { delete(d.client.waiting, d.token) })
}

// Connect starts a client, and waits until the server has accepted it; Refused if the first attempt fails, unless
// Options.Offline. The context is that of the attempt, not of the client.
func Connect(ctx context.Context, url string, options Options) (*Client, error) {
	made, err := newOptions(url)
	if err != nil {
		return nil, err
	}
	defer free(made)
	if err := options.apply(made); err != nil {
		return nil, err
	}
	client := &Client{
		hook: options.OnEvent, changed: make(chan struct{}), waiting: map[uint64]chan result{},
		connected: make(chan error, 1), done: make(chan struct{}),
	}
	if client.handle, err = connect(made); err != nil {
		return nil, err
	}
	if err := client.start(); err != nil {
		free(client.handle)
		return nil, err
	}
	if options.Offline {
		return client, nil
	}
	select {
	case err = <-client.connected:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		client.end(ErrClosed)
		return nil, err
	}
	return client, nil
}

// start begins to read events. The descriptor is the library's: a copy of it belongs to Go's poller.
func (c *Client) start() error {
	fd, err := eventFD(c.handle)
	if err != nil {
		return err
	}
	copied, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return errno
	}
	c.events = os.NewFile(copied, "libfulmar")
	raw, err := c.events.SyscallConn()
	if err != nil {
		c.events.Close()
		return err
	}
	go c.read(raw)
	return nil
}

func (c *Client) read(raw syscall.RawConn) {
	defer close(c.done)
	for c.awaitRoom() {
		var ended error
		err := raw.Read(func(uintptr) bool {
			for c.hasRoom() {
				event, some, err := next(c.handle)
				if err != nil {
					ended = err
					return true
				}
				if !some {
					return false
				}
				c.take(&event)
			}
			return true
		})
		if err = errors.Join(err, ended); err != nil {
			c.finish(ErrClosed)
			return
		}
	}
}

// hasRoom says whether to take an event: results may stand behind more messages than wait already, and a close needs all.
func (c *Client) hasRoom() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wantsEvents()
}

// wantsEvents is hasRoom with the lock.
func (c *Client) wantsEvents() bool {
	return c.closing || !c.isFull() && (len(c.messages) < maxMessages || len(c.waiting) > 0)
}

// isFull says whether no further message may wait; with the lock.
func (c *Client) isFull() bool {
	return len(c.messages) >= maxBacklog || c.messageBytes >= maxBacklogBytes
}

// awaitRoom waits until it has; false once the client has ended.
func (c *Client) awaitRoom() bool {
	room := false
	c.await(context.Background(), func() bool {
		room = c.wantsEvents()
		return room || c.ended != nil
	})
	return room
}

// await waits until something is true, which is asked with the lock.
func (c *Client) await(ctx context.Context, condition func() bool) error {
	for {
		c.mu.Lock()
		if condition() {
			c.mu.Unlock()
			return nil
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// change does something with the lock, and wakes all that wait.
func (c *Client) change(work func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	work()
	c.wake()
}

// wake wakes all that wait; with the lock.
func (c *Client) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// finish notes why no more events come, and fails what waits.
func (c *Client) finish(why error) {
	c.change(func() {
		if c.ended == nil {
			c.ended = why
		}
		c.failWaiting(c.ended)
		select {
		case c.connected <- c.ended:
		default:
		}
	})
}

// failWaiting fails the requests whose results are not to come any more; with the lock.
func (c *Client) failWaiting(why error) {
	for token, waiting := range c.waiting {
		waiting <- result{err: why}
		delete(c.waiting, token)
	}
}

// keep keeps a message for the application; with the lock.
func (c *Client) keep(message Message) {
	// Only of a client that closes, which reads on.
	if c.isFull() {
		return
	}
	c.messages = append(c.messages, message)
	c.messageBytes += message.size()
	if c.isFull() && !c.closing {
		c.failWaiting(errBacklog)
	}
}

func (c *Client) take(taken *event) {
	switch taken.Kind {
	case kindMessage:
		c.change(func() { c.keep(taken.message) })
		return
	case kindPublished, kindSubscribed, kindUnsubscribed:
		c.change(func() { c.answer(taken) })
		return
	case Connected:
		select {
		case c.connected <- nil:
		default:
		}
	case Lost:
		select {
		case c.connected <- &Refused{taken.Reason, taken.Text}:
		default:
		}
		if taken.GaveUp {
			c.finish(&Disconnected{taken.Reason, taken.Text})
		}
	}
	if c.hook != nil {
		c.hook(taken.Event)
	}
}

// answer gives a result to the request that waits, if it still does; with the lock.
func (c *Client) answer(taken *event) {
	waiting := c.waiting[taken.token]
	if waiting == nil {
		return
	}
	delete(c.waiting, taken.token)
	switch {
	case taken.Reason >= 0x80:
		waiting <- result{err: &Refused{taken.Reason, taken.Text}}
	case taken.Reason >= 0:
		waiting <- result{reason: taken.Reason}
	case c.closing:
		// The close has overtaken it.
		waiting <- result{err: ErrClosed}
	default:
		waiting <- result{err: &Disconnected{taken.Reason, taken.Text}}
	}
}

// request makes a call whose result becomes an event.
func (c *Client) request(work func(*Delivery) error) (*Delivery, error) {
	delivery := &Delivery{client: c, result: make(chan result, 1)}
	var refused error
	c.change(func() {
		if refused = c.ended; refused == nil && c.isFull() {
			refused = errBacklog
		}
		if refused == nil {
			c.token++
			delivery.token = c.token
			c.waiting[c.token] = delivery.result
		}
	})
	if refused != nil {
		return nil, refused
	}
	if err := work(delivery); err != nil {
		delivery.forget()
		return nil, c.cause(err)
	}
	return delivery, nil
}

// cause is why a call has failed: the handle of a client that has ended is wrong, too.
func (c *Client) cause(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && c.ended != nil {
		return c.ended
	}
	return err
}

// Publish publishes, and waits as Delivery.Wait does.
//
// A result comes behind the messages that were received before it. While 10,000 of them, or 64 MiB, wait for Receive, the
// client reads nothing: requests under way fail with ErrTimeout although the server may have them, and new ones fail at once.
func (c *Client) Publish(ctx context.Context, message Message) error {
	delivery, err := c.Queue(ctx, message)
	if err != nil {
		return err
	}
	defer delivery.forget()
	return delivery.Wait(ctx)
}

// Queue queues a message, connected or not, and waits only while the queue is full. Messages that one goroutine queues are
// sent in this order.
func (c *Client) Queue(ctx context.Context, message Message) (*Delivery, error) {
	return c.request(func(delivery *Delivery) error {
		for {
			err := publish(c.handle, &message, delivery.token)
			if !errors.Is(err, ErrTimeout) {
				return err
			}
			select {
			case <-time.After(queuePoll):
			case failed := <-delivery.result:
				return failed.err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

// SubscribeOption is one of SUBSCRIBE's (MQTT 5.0, section 3.8.3.1).
type SubscribeOption byte

// Options of a subscription.
const (
	// NoLocal leaves out what this client publishes.
	NoLocal SubscribeOption = 4
	// RetainAsPublished leaves the retain flag of messages as it is.
	RetainAsPublished SubscribeOption = 8
	// RetainedIfNew sends retained messages to a new subscription only.
	RetainedIfNew SubscribeOption = 16
	// NoRetained sends none.
	NoRetained SubscribeOption = 32
)

// Subscribe subscribes at this QoS, and returns the granted one.
func (c *Client) Subscribe(ctx context.Context, filter string, qos byte, options ...SubscribeOption) (byte, error) {
	for _, option := range options {
		qos |= byte(option)
	}
	granted, err := c.ask(ctx, func(token uint64) error { return subscribe(c.handle, filter, qos, token) })
	return byte(granted), err
}

// Unsubscribe ends a subscription.
func (c *Client) Unsubscribe(ctx context.Context, filter string) error {
	_, err := c.ask(ctx, func(token uint64) error { return unsubscribe(c.handle, filter, token) })
	return err
}

func (c *Client) ask(ctx context.Context, work func(token uint64) error) (int, error) {
	delivery, err := c.request(func(delivery *Delivery) error { return work(delivery.token) })
	if err != nil {
		return 0, err
	}
	defer delivery.forget()
	return delivery.wait(ctx)
}

// Receive returns the next message; ErrClosed after Close, Disconnected if the client gave up.
func (c *Client) Receive(ctx context.Context) (message Message, err error) {
	waited := c.await(ctx, func() bool {
		if len(c.messages) > 0 {
			stopped := !c.wantsEvents()
			message, c.messages[0] = c.messages[0], Message{}
			c.messages = c.messages[1:]
			c.messageBytes -= message.size()
			if stopped && c.wantsEvents() {
				c.wake()
			}
			return true
		}
		err = c.ended
		return c.ended != nil
	})
	if waited != nil {
		err = waited
	}
	return message, err
}

// Messages has received messages until the context or the client ends, and then why, unless it was Close.
func (c *Client) Messages(ctx context.Context) iter.Seq2[Message, error] {
	return func(yield func(Message, error) bool) {
		for {
			message, err := c.Receive(ctx)
			if errors.Is(err, ErrClosed) || !yield(message, err) || err != nil {
				return
			}
		}
	}
}

// Acknowledge acknowledges a message at QoS 1, with Options.AcknowledgeByHand.
func (c *Client) Acknowledge(message Message) error {
	return c.cause(acknowledge(c.handle, message.receipt))
}

// NetworkChanged says that the machine's network has changed: QUIC moves to a new socket, and the connection goes on.
func (c *Client) NetworkChanged() error { return c.cause(networkChanged(c.handle)) }

// Statistics returns those of the connection's path; ErrTimeout if there is no connection.
func (c *Client) Statistics() (Statistics, error) {
	found, err := path(c.handle)
	return found, c.cause(err)
}

// Close disconnects after what is queued is delivered, for at most drain_timeout_ms, and ends the client.
func (c *Client) Close() error {
	c.change(func() { c.closing = true })
	err := disconnect(c.handle)
	if errors.Is(err, ErrInvalid) || errors.Is(err, ErrClosed) {
		// By another Close, or because it gave up.
		err = nil
	}
	// Results stand before the end.
	c.await(context.Background(), func() bool { return c.ended != nil || len(c.waiting) == 0 })
	c.end(ErrClosed)
	return err
}

// end frees the client.
func (c *Client) end(why error) {
	c.finish(why)
	c.events.Close()
	<-c.done
	free(c.handle)
}
