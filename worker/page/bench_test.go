package page

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
)

// BenchmarkSnapshot reads what a screen shows with tasks that wait in 10,000 scopes of one provider, and all that changes slowly too. It
// tells how many milliseconds of Redis that takes, beside the time of the page.
func BenchmarkSnapshot(b *testing.B) {
	rdb := redistest.NewServer(b).Client(b)
	p, err := limitsyaml.Parse("limits.yaml", []byte(testLimits))
	if err != nil {
		b.Fatal(err)
	}
	limiter, err := throttle.New(rdb, p, throttle.Config{})
	if err != nil {
		b.Fatal(err)
	}
	if _, _, err := policystore.New(rdb, policystore.Config{}).PublishFile(b.Context(), "worker", p, nil); err != nil {
		b.Fatal(err)
	}
	for range 2 {
		if _, err := limiter.Allow(b.Context(), "payments"); err != nil {
			b.Fatal(err)
		}
	}
	tasks := func(yield func(queue.Task) bool) {
		for n := range 10_000 {
			if !yield(queue.Task{Type: "mail", Scope: fmt.Sprintf("payments/tenant-%d", n)}) {
				return
			}
		}
	}
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	if _, err := client.EnqueueBatch(b.Context(), queue.Number(tasks), nil); err != nil {
		b.Fatal(err)
	}
	h, err := newHandler(Config{Redis: rdb, Local: "me"})
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range []string{"/", "/scope?scope=payments", "/scope?scope=payments/tenant-7", "/waiters?scope=payments/tenant-7"} {
		b.Run(path, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			s, _ := h.screenOf(r.URL.Path)
			t, err := s.topic(r, everybody)
			if err != nil {
				b.Fatal(err)
			}
			last, err := t.load(b.Context(), nil)
			if err != nil {
				b.Fatal(err)
			}
			before := redisTime(b, rdb)
			for b.Loop() {
				h.following.read = time.Time{}
				if scope, is := last.(*scopeState); is {
					old := *scope
					old.slow[slowLower] = slowPart{}
					last = &old
				}
				if last, err = t.load(context.Background(), last); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((redisTime(b, rdb)-before).Microseconds())/1000/float64(b.N), "redis-ms/op")
		})
	}
}

// redisTime is how long Redis has worked on commands since it began, those within scripts not counted twice.
func redisTime(b *testing.B, rdb *redis.Client) time.Duration {
	b.Helper()
	text, err := rdb.Info(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	var sum int64
	for line := range strings.Lines(text) {
		name, rest, is := strings.Cut(strings.TrimSpace(line), ":")
		name = strings.TrimPrefix(name, "cmdstat_")
		if !is || name != "evalsha" && name != "hscan" && name != "hmget" && name != "hgetall" && name != "zrangebyscore" && name != "zrange" && name != "zcard" {
			continue
		}
		for field := range strings.SplitSeq(rest, ",") {
			if text, is := strings.CutPrefix(field, "usec="); is {
				n, _ := strconv.ParseInt(text, 10, 64)
				sum += n
			}
		}
	}
	return time.Duration(sum) * time.Microsecond
}
