package queue_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
)

// Strides are to each other as the inverses of the weights, and ranks in the weights' order.
func TestRank(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		queues map[string]int
		strict bool
		want   map[string]string
	}{
		"asynq's example": {map[string]int{"critical": 6, "default": 3, "low": 1}, false,
			map[string]string{"critical": "0 critical 1", "default": "0 default 2", "low": "0 low 6", "other": "0 other 6"}},
		"strict": {map[string]int{"critical": 6, "default": 3, "low": 1, "bulk": 1}, true,
			map[string]string{"critical": "0  0", "default": "-1  0", "low": "-2  0", "bulk": "-2  0", "other": "-2  0"}},
		"one queue":    {map[string]int{"low": 7}, false, map[string]string{"low": "0  0", "other": "0  0"}},
		"equal":        {map[string]int{"a": 7, "b": 7}, true, map[string]string{"a": "0  0", "b": "0  0"}},
		"left out":     {map[string]int{"a": 7, "b": 0, "c": -1}, false, map[string]string{"a": "0  0", "b": "0  0"}},
		"no multiples": {map[string]int{"a": 997, "b": 991, "c": 1}, false, map[string]string{"a": "0 a 60", "b": "0 b 60", "c": "0 c 59820"}},
		"too large":    {map[string]int{"a": math.MaxInt, "b": 1}, false, map[string]string{"a": "0 a 1", "b": "0 b 1000000"}},
		"none":         {nil, true, map[string]string{"default": "0  0"}},
	} {
		w := queue.NewWeights(tt.queues, tt.strict)
		for name, want := range tt.want {
			priority, lane, stride := w.Rank(name, 0)
			if got := fmt.Sprintf("%d %s %d", priority, lane, stride); got != want {
				t.Errorf("%v, strict %t: %s has %q, want %q", tt.queues, tt.strict, name, got, want)
			}
			if priority, _, _ := w.Rank(name, 5); priority != 5 {
				t.Errorf("%v: a task's own priority of 5 became %d", tt.queues, priority)
			}
		}
		if _, lane, _ := w.Rank(string(make([]byte, 129)), 0); lane != "" {
			t.Errorf("%s: %d bytes are no lane", name, len(lane))
		}
	}
}

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

// Workers' weights are read by all, stay when the workers end, and give way to those of a
// later release within a minute.
func TestPublishedWeights(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	publish := func(want int, own ...queue.Weights) {
		t.Helper()
		all, err := queue.PublishWeights(t.Context(), rdb, own...)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, stride := all.Rank("low", 0); stride != want {
			t.Errorf("low has a stride of %d, want %d", stride, want)
		}
	}
	publish(0)
	publish(6, queue.NewWeights(map[string]int{"critical": 6, "low": 1}, false), queue.NewWeights(map[string]int{"low": 1}, false))
	publish(6)
	if n, ttl := rdb.ZCard(t.Context(), "hw:queues").Val(), rdb.PTTL(t.Context(), "hw:queues").Val(); n != 1 || ttl < 23*time.Hour {
		t.Errorf("%d kinds of weights stand for %v", n, ttl)
	}
	earlier := func(by time.Duration) {
		t.Helper()
		for _, z := range rdb.ZRangeWithScores(t.Context(), "hw:queues", 0, -1).Val() {
			rdb.ZAdd(t.Context(), "hw:queues", redis.Z{Score: z.Score - float64(by.Milliseconds()), Member: z.Member})
		}
	}
	earlier(30 * time.Second)
	publish(6, queue.NewWeights(map[string]int{"critical": 2, "low": 1}, false)) // both are live
	earlier(40 * time.Second)
	publish(2, queue.NewWeights(map[string]int{"critical": 2, "low": 1}, false))
	earlier(20 * time.Hour)
	publish(2)
	rdb.ZAdd(t.Context(), "hw:queues", redis.Z{Score: float64(time.Now().UnixMilli()), Member: "of a later release"})
	publish(2)
}

// A program that enqueues goes by the workers' weights, and reads them seldom.
func TestClientLearnsWeights(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	policy, err := policy.New("", map[string]policy.ScopeConfig{"p": {Rules: []policy.Rule{
		{Name: "r", Algorithm: policy.SlidingWindow, Limit: 1, Per: time.Hour},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	if err != nil {
		t.Fatal(err)
	}
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
