package metrics_test

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/worker/metrics"
)

// A program that has a registry registers the metrics there.
func ExampleMetrics() {
	m := metrics.New(metrics.Config{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)

	m.PickedUp("default")
	m.Ran(context.Background(), "default", "done", 20*time.Millisecond)

	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
	}
	for _, f := range families {
		if f.GetName() == "headway_pickups_total" {
			fmt.Println(f.GetName(), f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	// Output: headway_pickups_total 1
}
