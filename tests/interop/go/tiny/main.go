// Command tiny is quic-go as a server for the small client: QUIC, and as much of MQTT 5 as it needs to be
// answered. Prints its port when it listens, and serves until its standard input ends.
//
//	tiny CERTIFICATE KEY [retry | group]
//
// "retry" sends a Retry packet to every new address, "group" takes key shares of P-256 only.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"github.com/eclipse/paho.golang/packets"
	"github.com/quic-go/quic-go"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("tiny CERTIFICATE KEY [retry | group]")
	}
	kind := ""
	if len(os.Args) > 3 {
		kind = os.Args[3]
	}
	port, err := serve(os.Args[1], os.Args[2], kind)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(port)
	io.Copy(io.Discard, os.Stdin)
}

// serve listens, and gives the port.
func serve(certificate, key, kind string) (int, error) {
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return 0, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"mqtt"}}
	if kind == "group" {
		config.CurvePreferences = []tls.CurveID{tls.CurveP256}
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return 0, err
	}
	transport := &quic.Transport{Conn: udp}
	if kind == "retry" {
		transport.VerifySourceAddress = func(net.Addr) bool { return true }
	}
	listener, err := transport.ListenEarly(config, &quic.Config{Allow0RTT: true})
	if err != nil {
		return 0, err
	}
	go func() {
		for {
			connection, err := listener.Accept(context.Background())
			if err != nil {
				return
			}
			go answer(connection)
		}
	}()
	return udp.LocalAddr().(*net.UDPAddr).Port, nil
}

// answer serves a connection's first stream until something is wrong with it.
func answer(connection *quic.Conn) {
	stream, err := connection.AcceptStream(context.Background())
	if err != nil {
		return
	}
	filters := map[string]bool{}
	for {
		packet, err := packets.ReadPacket(stream)
		if err != nil {
			return
		}
		for _, reply := range replies(packet, filters) {
			if _, err := reply.WriteTo(stream); err != nil {
				return
			}
		}
	}
}

// replies gives what a broker says to a packet; a message goes back to where it came from if that is subscribed.
func replies(packet *packets.ControlPacket, filters map[string]bool) []*packets.ControlPacket {
	switch content := packet.Content.(type) {
	case *packets.Connect:
		return []*packets.ControlPacket{packets.NewControlPacket(packets.CONNACK)}
	case *packets.Subscribe:
		suback := packets.NewControlPacket(packets.SUBACK)
		said := suback.Content.(*packets.Suback)
		said.PacketID = content.PacketID
		for _, subscription := range content.Subscriptions {
			filters[subscription.Topic] = true
			said.Reasons = append(said.Reasons, 1)
		}
		return []*packets.ControlPacket{suback}
	case *packets.Publish:
		puback := packets.NewControlPacket(packets.PUBACK)
		puback.Content.(*packets.Puback).PacketID = content.PacketID
		list := []*packets.ControlPacket{puback}
		if filters[content.Topic] {
			list = append(list, packet)
		}
		return list
	}
	return nil
}
