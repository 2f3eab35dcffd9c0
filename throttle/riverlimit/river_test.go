package riverlimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/riverlimit"
)

type mail struct {
	Scope string `json:"scope"`
}

func (mail) Kind() string { return "mail" }

type mailer struct {
	river.WorkerDefaults[mail]
	work func(ctx context.Context, job *river.Job[mail]) error
}

func (m *mailer) Work(ctx context.Context, job *river.Job[mail]) error { return m.work(ctx, job) }

func scopeOf(job *rivertype.JobRow) (string, error) {
	var args mail
	err := json.Unmarshal(job.EncodedArgs, &args)
	return args.Scope, err
}

// bench is a queue of jobs under a limit, with two clients of River and what they have started.
type bench struct {
	db      *pgxpool.Pool
	limiter *throttle.Limiter
	spent   int64

	mu     sync.Mutex
	starts []time.Time
}

func newBench(t testing.TB, rule policy.Rule) *bench {
	t.Helper()
	b := &bench{db: pool(t)}
	rules, err := policy.Single("mail", rule)
	redistest.Must(t, err)
	b.limiter, err = throttle.New(redistest.Client(t), rules, throttle.Config{Prefix: redistest.Prefix(t), OnSpent: func(s throttle.Spent) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.spent += s.Units
	}})
	redistest.Must(t, err)
	return b
}

// serve starts a client with so many workers, and stops it when t ends.
func (b *bench) serve(t testing.TB, slots int, middleware []rivertype.Middleware, work func(context.Context, *river.Job[mail]) error) {
	t.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, &mailer{work: work})
	client, err := river.NewClient(riverpgxv5.New(b.db), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots}}, Workers: workers, Middleware: middleware,
		Logger: slog.New(slog.DiscardHandler),
	})
	redistest.Must(t, err)
	redistest.Must(t, client.Start(context.WithoutCancel(t.Context())))
	t.Cleanup(func() { redistest.Must(t, client.StopAndCancel(context.Background())) })
}

// ours has two clients work under the middleware.
func (b *bench) ours(t testing.TB, slots int, hold time.Duration) {
	t.Helper()
	for range 2 {
		limits, err := riverlimit.New(b.limiter, riverlimit.Config{Scope: scopeOf, Hold: hold})
		redistest.Must(t, err)
		b.serve(t, slots, []rivertype.Middleware{limits}, func(context.Context, *river.Job[mail]) error {
			b.began()
			return nil
		})
	}
}

// usual has two clients work in the usual way: the handler asks a limiter, and snoozes the job for as long as the limiter says.
func (b *bench) usual(t testing.TB) {
	t.Helper()
	for range 2 {
		b.serve(t, 100, nil, func(ctx context.Context, job *river.Job[mail]) error {
			d, err := b.limiter.Allow(ctx, job.Args.Scope)
			if err == nil && !d.Allowed {
				return river.JobSnooze(d.RetryAfter)
			}
			b.began()
			return err
		})
	}
}

func (b *bench) began() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.starts = append(b.starts, time.Now())
}

func (b *bench) enqueue(t testing.TB, n int) {
	t.Helper()
	client, err := river.NewClient(riverpgxv5.New(b.db), &river.Config{})
	redistest.Must(t, err)
	many := make([]river.InsertManyParams, n)
	for i := range many {
		many[i] = river.InsertManyParams{Args: mail{Scope: "mail/acme"}}
	}
	_, err = client.InsertMany(t.Context(), many)
	redistest.Must(t, err)
}

func (b *bench) number(t testing.TB, query string) (n int) {
	t.Helper()
	redistest.Must(t, b.db.QueryRow(t.Context(), query).Scan(&n))
	return n
}

// untilCompleted waits until all jobs have been worked.
func (b *bench) untilCompleted(t testing.TB, n int) {
	t.Helper()
	redistest.WaitAsking(t, fmt.Sprintf("%d jobs", n), bound, func() bool {
		return b.number(t, "SELECT count(*) FROM river_job WHERE state = 'completed'") == n
	})
}

// most returns the most starts in any interval of such a length.
func (b *bench) most(interval time.Duration) (most int) {
	slices.SortFunc(b.starts, time.Time.Compare)
	first := 0
	for i, at := range b.starts {
		for ; at.Sub(b.starts[first]) >= interval; first++ {
		}
		most = max(most, i-first+1)
	}
	return most
}

func window(limit int64) policy.Rule {
	return policy.Rule{Name: "account", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Second}
}

// "A backlog uses the whole limit and never more; each job is picked up two or three times, in one attempt."
func TestBacklog(t *testing.T) {
	t.Parallel()
	const jobs, limit = 300, 50
	b := newBench(t, window(limit))
	b.enqueue(t, jobs)
	b.ours(t, 100, 0)
	b.untilCompleted(t, jobs)
	if most := b.most(950 * time.Millisecond); most > limit {
		t.Errorf("%d starts in less than a second, of %d", most, limit)
	}
	if n := b.number(t, "SELECT max(attempt) FROM river_job"); n != 1 || len(b.starts) != jobs {
		t.Errorf("up to %d attempts a job, %d runs of %d", n, len(b.starts), jobs)
	}
	if b.spent > jobs*11/10 {
		t.Errorf("%d units for %d jobs: starts are not kept", b.spent, jobs)
	}
}

// A backlog under the middleware, and beside it the usual way. It prints the rows of docs/benchmarks.md.
func BenchmarkBacklog(b *testing.B) {
	scale := 10
	if os.Getenv("HEADWAY_BENCH_SCENARIOS") == "all" {
		scale = 1
	}
	for _, c := range []struct {
		who         string
		jobs, limit int
		slots       int // 0: the usual way
		hold        time.Duration
	}{
		{who: "riverlimit", jobs: 2000, limit: 100, slots: 100},
		{who: "riverlimit, 30 workers each", jobs: 2000, limit: 100, slots: 30},
		{who: "riverlimit, Hold 500ms", jobs: 2000, limit: 100, slots: 100, hold: 500 * time.Millisecond},
		{who: "the usual way", jobs: 2000, limit: 100},
		{who: "riverlimit", jobs: 600, limit: 30, slots: 100},
		{who: "the usual way", jobs: 600, limit: 30},
	} {
		jobs := c.jobs / scale
		measure := fmt.Sprintf("%d River jobs at %d per s", jobs, c.limit)
		b.Run(measure+"/"+c.who, func(b *testing.B) {
			for b.Loop() {
				q := newBench(b, window(int64(c.limit)))
				q.enqueue(b, jobs)
				if c.slots > 0 {
					q.ours(b, c.slots, c.hold)
				} else {
					q.usual(b)
				}
				q.untilCompleted(b, jobs)
				most := q.most(time.Second)
				// A window that begins with the backlog may take its limit at once.
				rate := float64(jobs-c.limit) / q.starts[jobs-1].Sub(q.starts[0]).Seconds()
				pickups := float64(q.number(b, "SELECT sum(coalesce((metadata->>'snoozes')::int, 0) + 1) FROM river_job")) / float64(jobs)
				b.ReportMetric(rate, "starts/s")
				b.ReportMetric(pickups, "pick-ups/job")
				b.Logf("| %s | %s | %d | %.1f %% | %d | %d | %.2f | %.1f |", measure, c.who, len(q.starts), 100*rate/float64(c.limit), most, c.limit, pickups, rate)
			}
		})
	}
}
