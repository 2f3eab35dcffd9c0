package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// What several workers serve counts together: the largest weight of each queue, strictly where
// all say so. A worker of one queue says nothing.
func TestWeightsTogether(t *testing.T) {
	t.Parallel()
	first, second := queue.NewWeights(map[string]int{"a": 4, "b": 1}, true), queue.NewWeights(map[string]int{"b": 2, "c": 1}, true)
	alone, shares := queue.NewWeights(map[string]int{"c": 9}, false), queue.NewWeights(map[string]int{"c": 1, "d": 1}, false)
	for _, tt := range []struct {
		all  []queue.Weights
		want string
	}{
		{[]queue.Weights{first, second, alone}, "a 0, b -1, c -2, "},
		{[]queue.Weights{first, second, shares}, "a 0 a 1, b 0 b 2, c 0 c 4, d 0 d 4, "},
		{[]queue.Weights{alone}, "c 0, "},
	} {
		got, w := "", queue.Together(tt.all...)
		for _, name := range []string{"a", "b", "c", "d"} {
			if priority, lane, stride := w.Rank(name, 0); lane != "" {
				got += fmt.Sprintf("%s %d %s %d, ", name, priority, lane, stride)
			} else if len(tt.all) > 1 && name != "d" || name == "c" {
				got += fmt.Sprintf("%s %d, ", name, priority)
			}
		}
		if got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// A program that enqueues goes by the workers' weights, and reads them seldom.
func TestClientLearnsWeights(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	policy, err := policy.New("", map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{
		{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour},
	}}})
	must(t, err)
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	must(t, err)
	weights := map[string]int{"critical": 6, "default": 3, "low": 1}
	for name, test := range map[string]struct {
		cfg   queue.ClientConfig
		reads int
	}{
		"learned": {queue.ClientConfig{Limiter: limiter}, 1},
		"told":    {queue.ClientConfig{Limiter: limiter, Queues: weights}, 0},
	} {
		if _, err := queue.PublishWeights(t.Context(), rdb, queue.NewWeights(weights, false)); err != nil {
			t.Fatal(err)
		}
		client := queue.NewClient(rdb, test.cfg)
		add := func(of string, n int) {
			for i := range n {
				if _, err := client.Enqueue(t.Context(), queue.Task{Type: "t", Scope: "p/" + name, Queue: of, ID: fmt.Sprintf("%s%02d", of, i)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := limiter.Allow(t.Context(), "p/"+name); err != nil {
			t.Fatal(err)
		}
		got := redistest.Commands(t, rdb, func() { add("low", 5); add("critical", 12) })
		if got["zrevrange"] != test.reads {
			t.Errorf("%s: weights were read %d times: %v", name, got["zrevrange"], got)
		}
		line := rdb.ZRange(t.Context(), "hw:{p}/"+name+"!queue", 0, -1).Val()
		of := map[string]int{}
		for _, ticket := range line[:min(7, len(line))] {
			name, _, _ := queue.ReadTicket(ticket[1:])
			of[name]++
		}
		if of["critical"] < 5 {
			t.Errorf("%s: of the first 7 in line are %v", name, of)
		}
	}
}
