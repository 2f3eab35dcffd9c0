package asynqx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/encoding/protowire"

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
				if len(way.ways) > test.trips {
					t.Errorf("they went as %v, want %d round trips at most", way.ways, test.trips)
				}
			})
		})
	}
}

// Where nothing is due asynq's script that forwards tasks is not sent: one command asks, and asynq hears that it
// moved none. It is sent as soon as something is due, and its errors reach asynq.
func TestForwardsWhatIsDue(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	rdb := server.Client(t)
	g := NewClient(ClientConfig{Redis: rdb, Serving: t.Context(), Interval: time.Second, Concurrency: 1})
	const now = 1_700_000_000
	keys := []string{"asynq:{default}:retry", "asynq:{default}:pending"}
	forwards := func(want int) map[string]int {
		t.Helper()
		return redistest.Commands(t, rdb, func() {
			got, err := g.Eval(t.Context(), `return redis.call("ZCARD", KEYS[1])`, keys, int64(now), "asynq:{default}:t:").Result()
			if err != nil || got != int64(want) {
				t.Errorf("%v (%T), %v; want %d", got, got, err, want)
			}
		})
	}
	add := func(id string, score float64) {
		t.Helper()
		must(t, rdb.ZAdd(t.Context(), keys[0], redis.Z{Score: score, Member: id}).Err())
	}
	if got := forwards(0); redistest.Total(got) != 1 || got["zrangebyscore"] != 1 {
		t.Errorf("an empty set takes %v", got)
	}
	add("later", now+1)
	if got := forwards(0); redistest.Total(got) != 1 {
		t.Errorf("a set with nothing due takes %v", got)
	}
	add("due", now)
	if got := forwards(2); got["eval"] != 1 {
		t.Errorf("a task that is due takes %v", got)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Eval(over, `return 1`, keys, int64(now)).Err(); err == nil {
		t.Error("a Redis that cannot be asked forwards")
	}
}

// asker stands for asynq and its Redis: it asks queues through a pacer, in rounds, and writes down when each was asked.
type asker struct {
	gate   *Pacer
	queues []string
	began  time.Time

	mu    sync.Mutex
	tasks map[string]int
	asked []string
	got   []string // which tasks came, and when
}

func newAsker(interval time.Duration, queues ...string) *asker {
	return &asker{gate: NewPacer(interval), queues: queues, began: time.Now(), tasks: map[string]int{}}
}

func (a *asker) redis(queue string) *redis.Cmd {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, fmt.Sprint(queue, " ", time.Since(a.began)))
	if a.tasks[queue] == 0 {
		return redis.NewCmdResult(nil, redis.Nil)
	}
	a.tasks[queue]--
	return redis.NewCmdResult("task", nil)
}

func (a *asker) put(queue string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tasks[queue] += n
}

// times asks as often as a pacer wants.
func times(lease string, once func() *redis.Cmd) ask {
	return func(_ context.Context, n int) (all []found) {
		for range n {
			all = append(all, found{lease, once()})
		}
		return all
	}
}

// round is what asynq does again and again.
func (a *asker) round(ctx context.Context) {
	for _, queue := range a.queues {
		cmd := a.gate.look(ctx, queue, times("", func() *redis.Cmd { return a.redis(queue) })).answer
		if message, err := cmd.Text(); !errors.Is(err, redis.Nil) {
			a.mu.Lock()
			defer a.mu.Unlock()
			at := time.Since(a.began).Truncate(5 * RoundPause) // asynq may be between two rounds
			a.got = append(a.got, fmt.Sprint(message, " ", at))
			return
		}
	}
	<-time.After(RoundPause)
}

// run runs rounds until the test ends.
func (a *asker) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			a.round(ctx)
		}
	}()
	t.Cleanup(func() {
		cancel()
		a.gate.Stop()
		<-done
	})
}

// since returns what was asked after the last call, once all is quiet.
func (a *asker) since() []string {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.asked
	a.asked = nil
	return out
}

func want(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: asked %q, want %q", what, got, want)
	}
}

// "the pacer holds the first call of a round back when the round before found nothing: until the poll interval is over, or a kick"
func TestGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAsker(time.Hour, "high", "low")
		a.run(t)
		want(t, "at the start", a.since(), "high 0s", "low 0s")
		<-time.After(time.Second)
		a.put("low", 2)
		want(t, "idle", a.since())
		a.gate.Kick()
		want(t, "after a kick, while it finds tasks", a.since(),
			"high 1s", "low 1s", "high 1s", "low 1s", "high 1s", "low 1s")
		<-time.After(time.Second)
		want(t, "idle again", a.since())
		a.gate.Kick()
		want(t, "a kick for nothing", a.since(), "high 2s", "low 2s")
		<-time.After(RoundPause / 2)
		a.gate.Kick()
		<-time.After(RoundPause)
		want(t, "a kick while asynq sleeps", a.since(), "high 2.002s", "low 2.002s")
	})
}

// "Where Redis does not answer, what waits is dropped", and nobody is held up: neither who sends nor who ends.
func TestBeatsOfARedisThatIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var b beats
		var sent atomic.Int64
		hangs := func(ctx context.Context) error {
			sent.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}
		began := time.Now()
		for range 2 * mostBeats {
			_ = b.send(t.Context(), hangs)
		}
		if err := b.send(t.Context(), hangs); !errors.Is(err, errBeats) {
			t.Errorf("%v where %d calls wait", err, mostBeats)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("sending took %s", took)
		}
		b.wait()
		if took := time.Since(began); took > lastTry {
			t.Errorf("it was waited for them for %s", took)
		}
		<-time.After(TryFor)
		if n := sent.Load(); n != 1 {
			t.Errorf("%d calls were sent to a Redis that does not answer, want 1: the next heartbeat writes all anew", n)
		}
		if err := b.send(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the call after that was answered %v, want how the last one has ended", err)
		}
		b.wait()
		if err := b.send(t.Context(), func(context.Context) error { return nil }); err != nil {
			t.Errorf("Redis answers again: %v", err)
		}
		b.wait()
	})
}

// A server says of itself that it runs as many tasks at once as its configuration has: the slots that it may lend beyond that are no part
// of it.
func TestServerSaysItsConcurrency(t *testing.T) {
	t.Parallel()
	rdb := redistest.NewServer(t).Client(t)
	g := NewClient(ClientConfig{Redis: rdb, Serving: t.Context(), Interval: time.Second, Concurrency: 16})
	info := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "here")
	info = protowire.AppendVarint(protowire.AppendTag(info, fieldConcurrency, protowire.VarintType), uint64(g.Slots.Most())) //nolint:gosec // 24
	keys := []string{"asynq:servers:{here:1:x}", "asynq:workers:{here:1:x}"}
	write := redis.NewScript(`return redis.call("SETEX", KEYS[1], ARGV[1], ARGV[2])`)
	for step := range 2 {
		must(t, write.Run(t.Context(), g, keys, 10, info).Err())
		g.beats.wait()
		text, err := rdb.Get(t.Context(), keys[0]).Bytes()
		must(t, err)
		last := text[len(text)-1] // of two values the last one counts
		if host := field(text, 1); host != "here" || last != 16 {
			t.Errorf("step %d: %q says %q and %d, want a Concurrency of 16, not %d", step, text, host, last, g.Slots.Most())
		}
		must(t, rdb.Del(t.Context(), keys[0]).Err())
	}
}
