// Command mochi runs the mochi-mqtt broker as a peer for `make bench`: one
// plain TCP listener on the address given, everyone allowed, nothing stored.
// It is not part of Fulmar; it exists because mochi is published as a library
// whose own example command also opens WebSocket and statistics listeners.
package main

import (
	"flag"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
)

func main() {
	address := flag.String("tcp", "127.0.0.1:1883", "address to listen on")
	flag.Parse()

	server := mqtt.New(&mqtt.Options{
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err := server.AddHook(new(auth.AllowHook), nil); err != nil {
		log.Fatal(err)
	}
	tcp := listeners.NewTCP(listeners.Config{ID: "tcp", Address: *address})
	if err := server.AddListener(tcp); err != nil {
		log.Fatal(err)
	}
	if err := server.Serve(); err != nil {
		log.Fatal(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
	_ = server.Close()
}
