// The OTLP receiver of the OpenTelemetry Collector, at the HTTP address of the first argument. Prints `ready`, and
// each request that it accepts as a line of JSON in the Collector's own encoding.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
)

// show prints what one of the Collector's marshalers returns.
func show(line []byte, err error) error {
	if err == nil {
		_, err = fmt.Println(string(line))
	}
	return err
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	http := map[string]any{"endpoint": os.Args[1]}
	protocols := map[string]any{"protocols": map[string]any{"http": http}}
	must(confmap.NewFromStringMap(protocols).Unmarshal(config))
	settings := receiver.Settings{
		ID:                component.NewID(factory.Type()),
		TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}
	ctx := context.Background()
	traces, err := consumer.NewTraces(func(_ context.Context, data ptrace.Traces) error {
		return show((&ptrace.JSONMarshaler{}).MarshalTraces(data))
	})
	must(err)
	metrics, err := consumer.NewMetrics(func(_ context.Context, data pmetric.Metrics) error {
		return show((&pmetric.JSONMarshaler{}).MarshalMetrics(data))
	})
	must(err)
	// Both are views of one receiver, as in the Collector.
	tracesReceiver, err := factory.CreateTraces(ctx, settings, config, traces)
	must(err)
	metricsReceiver, err := factory.CreateMetrics(ctx, settings, config, metrics)
	must(err)
	must(metricsReceiver.Start(ctx, componenttest.NewNopHost()))
	must(tracesReceiver.Start(ctx, componenttest.NewNopHost()))
	fmt.Println("ready")
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	must(tracesReceiver.Shutdown(ctx))
}
