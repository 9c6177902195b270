/* Subscribes, publishes, and prints what comes back:  pubsub quic://localhost plant/temperature 21.5
 *
 *     cc pubsub.c $(pkg-config --cflags --libs libfulmar) -o pubsub
 */
#include <fulmar.h>
#include <stdio.h>
#include <stdlib.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, fulmar_error());
    return 1;
}

int main(int count, char **words) {
    if (count != 4) {
        fprintf(stderr, "usage: %s URL TOPIC TEXT\n", words[0]);
        return 2;
    }
    uint64_t options = fulmar_options_new(words[1]);
    if (options == 0)
        return failed("options");
    const char *ca = getenv("FULMAR_CA"), *user = getenv("FULMAR_USER"), *password = getenv("FULMAR_PASSWORD");
    if ((ca && fulmar_set(options, "ca_file", ca) < 0) || (user && fulmar_set(options, "username", user) < 0) ||
        (password && fulmar_set(options, "password", password) < 0))
        return failed("options");
    uint64_t client = fulmar_connect(options);
    fulmar_free(options);
    if (client == 0)
        return failed("connect");
    if (fulmar_subscribe(client, words[2], 1, 1) < 0)
        return failed("subscribe");
    struct fulmar_event event;
    int status = 1, taken;
    while ((taken = fulmar_next(client, &event, 10000)) == 1) {
        if (event.kind == FULMAR_SUBSCRIBED && fulmar_publish_text(client, words[2], words[3], 1, 2, 10000) < 0) {
            failed("publish");
            break;
        } else if (event.kind == FULMAR_DISCONNECTED) {
            fprintf(stderr, "%s\n", event.text);
        } else if (event.kind == FULMAR_MESSAGE) {
            printf("%s %.*s\n", event.topic, (int)event.payload_size, (const char *)event.payload);
            status = 0;
            break;
        }
    }
    if (taken < 0)
        failed("next");
    fulmar_disconnect(client, 10000);
    fulmar_free(client);
    return status;
}
