package riverlimit_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/riverlimit"
)

var (
	jobs      = flag.Int("jobs", 300, "how many jobs wait under the limit")
	perSecond = flag.Int64("per-second", 50, "the limit")
	slots     = flag.Int("workers", 100, "river.QueueConfig.MaxWorkers of each of two clients")
	hold      = flag.Duration("hold", 0, "riverlimit.Config.Hold")
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

func newBench(t *testing.T, name string, rule policy.Rule) *bench {
	t.Helper()
	b := &bench{db: pool(t, name)}
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

// serve starts a client whose jobs are worked so, and stops it when t ends.
func (b *bench) serve(t *testing.T, middleware []rivertype.Middleware, work func(context.Context, *river.Job[mail]) error) *river.Client[pgx.Tx] {
	t.Helper()
	workers := river.NewWorkers()
	river.AddWorker(workers, &mailer{work: work})
	client, err := river.NewClient(riverpgxv5.New(b.db), &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: *slots}}, Workers: workers, Middleware: middleware,
		Logger: slog.New(slog.DiscardHandler),
	})
	redistest.Must(t, err)
	redistest.Must(t, client.Start(context.WithoutCancel(t.Context())))
	t.Cleanup(func() { redistest.Must(t, client.StopAndCancel(context.Background())) })
	return client
}

func (b *bench) began() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.starts = append(b.starts, time.Now())
}

func (b *bench) enqueue(t *testing.T, n int) {
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

func (b *bench) number(t *testing.T, query string) (n int) {
	t.Helper()
	redistest.Must(t, b.db.QueryRow(t.Context(), query).Scan(&n))
	return n
}

const completed = "SELECT count(*) FROM river_job WHERE state = 'completed'"

func (b *bench) untilCompleted(t *testing.T, n int) {
	t.Helper()
	redistest.WaitAsking(t, fmt.Sprintf("%d jobs", n), bound, func() bool { return b.number(t, completed) == n })
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

// figures are what the page says of a backlog.
func (b *bench) figures(t *testing.T, limit int64) string {
	t.Helper()
	took := b.starts[len(b.starts)-1].Sub(b.starts[0])
	pickups := b.number(t, "SELECT sum(coalesce((metadata->>'snoozes')::int, 0) + 1) FROM river_job")
	// A window that begins with the backlog may take its limit at once.
	return fmt.Sprintf("%d jobs at %d/s in %s: %.1f a second, at most %d in a second, %.2f pick-ups a job, %d units spent",
		len(b.starts), limit, took.Round(time.Millisecond), float64(int64(len(b.starts))-limit)/took.Seconds(), b.most(time.Second),
		float64(pickups)/float64(len(b.starts)), b.spent)
}

// "A backlog uses the whole limit and never more; each job is picked up two or three times, in one attempt."
func TestBacklog(t *testing.T) {
	t.Parallel()
	limit := *perSecond
	b := newBench(t, "backlog", policy.Rule{Name: "account", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Second})
	b.enqueue(t, *jobs)
	for range 2 {
		limits, err := riverlimit.New(b.limiter, riverlimit.Config{Scope: scopeOf, Hold: *hold})
		redistest.Must(t, err)
		b.serve(t, []rivertype.Middleware{limits}, func(context.Context, *river.Job[mail]) error {
			b.began()
			return nil
		})
	}
	b.untilCompleted(t, *jobs)
	t.Log(b.figures(t, limit))
	if most := b.most(950 * time.Millisecond); int64(most) > limit {
		t.Errorf("%d starts in less than a second, of %d", most, limit)
	}
	if n := b.number(t, "SELECT max(attempt) FROM river_job"); n != 1 || len(b.starts) != *jobs {
		t.Errorf("up to %d attempts a job, %d runs of %d", n, len(b.starts), *jobs)
	}
	if b.spent > int64(*jobs)*11/10 {
		t.Errorf("%d units for %d jobs: starts are not kept", b.spent, *jobs)
	}
}

// The usual way, beside it: the handler asks a limiter, and snoozes the job for as long as the limiter says. It is for the figures.
func TestUsualWay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it is measured, and promises nothing")
	}
	limit := *perSecond
	b := newBench(t, "usual", policy.Rule{Name: "account", Algorithm: policy.SlidingWindow, Limit: limit, Per: time.Second})
	b.enqueue(t, *jobs)
	for range 2 {
		b.serve(t, nil, func(ctx context.Context, job *river.Job[mail]) error {
			d, err := b.limiter.Allow(ctx, job.Args.Scope)
			if err == nil && !d.Allowed {
				return river.JobSnooze(d.RetryAfter)
			}
			b.began()
			return err
		})
	}
	b.untilCompleted(t, *jobs)
	t.Log(b.figures(t, limit))
}
