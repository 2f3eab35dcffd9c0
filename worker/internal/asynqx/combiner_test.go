package asynqx

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// trips counts round trips, and makes each take a while.
type trips struct {
	takes time.Duration

	mu   sync.Mutex
	ways []int // how many commands went in each
}

func (r *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "eval" { // and not what begins a connection
			r.goes(1)
		}
		return next(ctx, cmd)
	}
}

func (r *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.goes(len(cmds))
		return next(ctx, cmds)
	}
}

func (r *trips) goes(n int) {
	r.mu.Lock()
	r.ways = append(r.ways, n)
	r.mu.Unlock()
	<-time.After(r.takes)
}

// "Nobody waits for one that hangs": those that came while it was on its way go by themselves.
func TestCombinerHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &combiner{}
		began := time.Now()
		var all sync.WaitGroup
		all.Go(func() {
			c.send(func(redis.Scripter) *redis.Cmd { <-time.After(time.Minute); return nil })
		})
		synctest.Wait()
		for range 200 {
			all.Go(func() {
				c.send(func(redis.Scripter) *redis.Cmd { return nil })
				if took := time.Since(began); took > 2*farAway {
					t.Errorf("one was sent after %s", took)
				}
			})
		}
		all.Wait()
	})
}

// "Scripts that come while another is on its way go together, in one round trip; where that takes longer than it does beside
// Redis, each goes at once", and gets its own answer.
func TestCombiner(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		takes time.Duration
		trips int // of 80 at once after one
		in    time.Duration
	}{
		{time.Millisecond, 1 + 4, 4 * time.Millisecond},
		{20 * time.Millisecond, 1 + 80, 20 * time.Millisecond},
	} {
		t.Run(test.takes.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, rdb := redistest.Miniredis(t)
				way := &trips{takes: test.takes}
				rdb.AddHook(way)
				c := &combiner{rdb: rdb}
				ask := func(i int) {
					cmd := c.send(func(to redis.Scripter) *redis.Cmd {
						return to.Eval(t.Context(), "return ARGV[1]", nil, i)
					})
					if got, err := cmd.Text(); err != nil || got != fmt.Sprint(i) {
						t.Errorf("%d was answered %q, %v", i, got, err)
					}
				}
				ask(0)
				began := time.Now()
				var all sync.WaitGroup
				for i := range 80 {
					all.Go(func() { ask(i) })
				}
				all.Wait()
				if took := time.Since(began); took > test.in {
					t.Errorf("80 took %s, want %s at most", took, test.in)
				}
				if got := fmt.Sprint(way.ways); len(way.ways) != test.trips {
					t.Errorf("they went as %s, want %d round trips", got, test.trips)
				}
			})
		})
	}
}
