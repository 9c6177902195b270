/* libfulmar: MQTT 5.0 and 3.1.1 over QUIC, TLS, TCP and WebSocket.
 *
 *     uint64_t options = fulmar_options_new("quic://broker.example.org");
 *     fulmar_set(options, "client_id", "meter-7");
 *     uint64_t client = fulmar_connect(options);
 *     fulmar_publish_text(client, "plant/temperature", "21.5", 1, 1, 10000);
 *     struct fulmar_event event;
 *     while (fulmar_next(client, &event, -1) == 1)
 *         if (event.kind == FULMAR_PUBLISHED)
 *             break;
 *     fulmar_disconnect(client, 10000);
 *     fulmar_free(client);
 *     fulmar_free(options);
 *
 * Handles are numbers; 0 is none, and a freed one is an error. Functions return 0 or more if they succeed, else one of the
 * negative codes below; functions that make a handle return 0 if they fail. fulmar_error() says why. Every function may be
 * called on any thread, and none calls the application back.
 *
 * Texts end with a zero byte and are UTF-8. Times are in milliseconds; a negative timeout waits without end, 0 not at all.
 * A client reconnects by itself, keeps what is queued meanwhile, and subscribes again if the server has lost the session.
 * All clients of a process share one thread. After fork(), the library works in the process that used it before only.
 */
#ifndef FULMAR_H
#define FULMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FULMAR_INVALID (-1)  /* an argument cannot be used, or the handle is none */
#define FULMAR_TIMEOUT (-2)  /* it did not happen in time */
#define FULMAR_CLOSED (-3)   /* the client has ended */
#define FULMAR_BUSY (-4)     /* another thread is in fulmar_next with this client */
#define FULMAR_INTERNAL (-5) /* a fault of the library */

/* The library's version, such as "0.1.0". */
const char *fulmar_version(void);

/* Why the last call of this thread that failed did so; until the next one that fails. */
const char *fulmar_error(void);

/* Options of a client. `url` is SCHEME://HOST[:PORT] with mqtt, mqtts, quic, ws or wss, or a list of hosts with commas. */
uint64_t fulmar_options_new(const char *url);

/* Sets an option, whose value is a text, or bytes (password, will_payload), of at most 65,535 bytes:
 *
 *   version                  5 (default) or 3.1.1
 *   client_id, username, password
 *   scram                    1: sign in without sending the password (MQTT 5.0)
 *   clean_start              0: resume the session of this client_id at the first connection, too
 *   session_expiry_s         how long the server keeps the session without a connection (default 0)
 *   keep_alive_s             of MQTT, 60 unless given; 0 for none
 *   quic_keep_alive_ms       of QUIC, 12000 unless given
 *   congestion               cubic (default), bbr or adaptive, which tells lost packets from full queues
 *   copies                   0: small datagrams are never repeated where packets are lost
 *   streams                  single (default), topic, subscription or topic-and-subscription: streams of QUIC
 *   max_data_streams         1 to 64
 *   persistent_flows         1: such streams survive the connection, with a server that knows them
 *   publish_before_connack   1: publications may follow CONNECT at once
 *   receive_maximum          messages that the server may send before they are acknowledged
 *   acknowledge_by_hand      1: a message at QoS 1 is acknowledged by fulmar_acknowledge only
 *   max_packet_bytes, max_queued_messages, max_queued_bytes
 *   ca_file                  authorities to trust, and no others (PEM)
 *   insecure                 1: trust every server; for experiments only
 *   certificate_file, key_file   the client's certificate and key (PEM)
 *   key_log_file             secrets of connections for Wireshark
 *   fallback_port            TLS over TCP at this port where UDP is blocked; for quic:// URLs
 *   reconnect                0: give up at the first failure
 *   reconnect_first_ms, reconnect_longest_ms   waits between attempts, 250 and 30000 unless given
 *   connect_timeout_ms, drain_timeout_ms       10000 unless given
 *   will_topic, will_payload, will_qos, will_retain, will_delay_s
 */
int fulmar_options_set(uint64_t options, const char *name, const void *value, size_t size);

/* Frees options or a client. A client disconnects, after what is queued is delivered, for at most drain_timeout_ms. */
int fulmar_free(uint64_t handle);

/* Starts a client, which connects in the background. The options can be used again. */
uint64_t fulmar_connect(uint64_t options);

/* A property of a message (MQTT 5.0, section 2.2.2.2): `number` for payload format (0x01), expiry in seconds (0x02) and,
 * received, subscription identifier (0x0B); `value` for content type (0x03), response topic (0x08) and correlation data
 * (0x09); `name` and `value` for user properties (0x26). They do not end with a zero byte. */
struct fulmar_property {
    const uint8_t *name;
    size_t name_size;
    const uint8_t *value;
    size_t value_size;
    uint32_t number;
    uint8_t id;
};

struct fulmar_message {
    const char *topic;
    const void *payload;
    size_t payload_size;
    const struct fulmar_property *properties;
    size_t property_count;
    uint8_t qos;
    bool retain;
};

/* Queues a message, connected or not; waits while the queue is full, which it may stay while nobody takes the client's
 * events. With a token other than 0, an event FULMAR_PUBLISHED
 * with this token follows when the server has it (QoS 1 and 2) or it is sent (QoS 0); 65,536 such events may wait. */
int fulmar_publish(uint64_t client, const struct fulmar_message *message, uint64_t token, int64_t timeout);

/* Subscribes. `options` are those of SUBSCRIBE (MQTT 5.0, section 3.8.3.1): the QoS, 4 for No Local, 8 for Retain As
 * Published, 16 or 32 for Retain Handling. With a token, an event FULMAR_SUBSCRIBED follows. */
int fulmar_subscribe(uint64_t client, const char *filter, uint8_t options, uint64_t token);

/* Ends a subscription. With a token, an event FULMAR_UNSUBSCRIBED follows. */
int fulmar_unsubscribe(uint64_t client, const char *filter, uint64_t token);

enum fulmar_event_kind {
    FULMAR_CONNECTED = 1,    /* session_present, early_data, transport; text: the address */
    FULMAR_DISCONNECTED = 2, /* text: why; reason: the server's, or -1; retry_in: -1 if the client does not try again */
    FULMAR_MESSAGE = 3,
    FULMAR_PUBLISHED = 4,    /* token; reason: 0 to 127 is good, -1 without an answer; text: what was wrong */
    FULMAR_SUBSCRIBED = 5,   /* as well; reason: the granted QoS */
    FULMAR_UNSUBSCRIBED = 6, /* as well */
    FULMAR_MIGRATED = 7,     /* QUIC goes on from another local address: text */
    FULMAR_MAY_REPEAT = 8    /* the server has lost the session: `token` publications at QoS 2 may arrive twice */
};

enum fulmar_transport { FULMAR_TCP = 0, FULMAR_TLS = 1, FULMAR_QUIC = 2, FULMAR_WS = 3, FULMAR_WSS = 4 };

/* What it points to is good until the next call of fulmar_next with this client, or fulmar_free. Kinds that a program does
 * not know are to be ignored. */
struct fulmar_event {
    uint64_t token;
    uint64_t receipt;
    int64_t retry_in;
    const char *topic;
    const uint8_t *payload;
    size_t payload_size;
    const struct fulmar_property *properties;
    size_t property_count;
    const char *text;
    uint32_t kind;
    int32_t reason;
    uint8_t qos;
    uint8_t transport;
    bool retain;
    bool dup;
    bool session_present;
    bool early_data;
};

/* Takes the next event: 1; 0 if there is none in time; FULMAR_CLOSED after the last one. While an application takes none,
 * its client reads no further messages. One thread at a time. */
int fulmar_next(uint64_t client, struct fulmar_event *event, int64_t timeout);

/* A file descriptor for poll, select or epoll, which can be read when fulmar_next with timeout 0 is worth a call. Do not
 * read from it. It is the client's: do not close it, and forget it before fulmar_free. */
int fulmar_event_fd(uint64_t client);

/* Acknowledges a message at QoS 1 by its receipt, with acknowledge_by_hand. One of an earlier connection is ignored: the
 * server sends that message again. */
int fulmar_acknowledge(uint64_t client, uint64_t receipt);

/* Says that the machine's network has changed: QUIC moves to a new socket, and the connection goes on. */
int fulmar_network_changed(uint64_t client);

/* The connection's path; rtt and everything below only of QUIC. */
struct fulmar_path {
    uint64_t rtt_us;
    uint64_t lost_packets;
    uint64_t sent_bytes;
    uint64_t received_bytes;
    uint32_t migrations;
    uint32_t server_moves;
    uint8_t transport;
    bool early_data;
};

/* FULMAR_TIMEOUT if the client is not connected. */
int fulmar_path(uint64_t client, struct fulmar_path *path);

/* Disconnects after what is queued is delivered; FULMAR_TIMEOUT if that takes too long. Events follow until
 * FULMAR_CLOSED. */
int fulmar_disconnect(uint64_t client, int64_t timeout);

/* The same with texts. */
static inline int fulmar_set(uint64_t options, const char *name, const char *value) {
    return fulmar_options_set(options, name, value, value ? strlen(value) : 0);
}

static inline int fulmar_publish_text(uint64_t client, const char *topic, const char *text, uint8_t qos, uint64_t token,
                                      int64_t timeout) {
    struct fulmar_message message = {topic, text, text ? strlen(text) : 0, NULL, 0, qos, false};
    return fulmar_publish(client, &message, token, timeout);
}

#ifdef __cplusplus
}
#endif

#endif
