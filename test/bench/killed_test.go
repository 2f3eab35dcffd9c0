package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/worker"
)

// BenchmarkKilled asks what is left of the quota when one of two workers is killed
// at full rate. What it had taken is stranded until asynq finds that its lease is
// over, half a minute later and more: those tasks are missing among the started,
// and not lost.
func BenchmarkKilled(b *testing.B) {
	for _, s := range []scenario{
		single("2000 at 100/s, one of two workers killed", 2000, bucket("r", 100, time.Second, 1)),
		single("5000 at 1000/s, one of two workers killed", 5000, bucket("r", 1000, time.Second, 1)),
	} {
		if !long() {
			s.tasks = s.tasks[:len(s.tasks)/10]
		}
		s.api = true
		measure(b, s, contender{name: "Headway, planned", enqueue: byQueue, serve: besideAVictim, pad: pad})
	}
}

// victimVariable makes this program a worker of its own, which is killed in the end: the address
// of its Redis. The policy, the API's address and the server's Concurrency are in the others.
const (
	victimVariable = "HEADWAY_BENCH_VICTIM"
	policyVariable = "HEADWAY_BENCH_POLICY"
	apiVariable    = "HEADWAY_BENCH_API"
	slotsVariable  = "HEADWAY_BENCH_SLOTS"
)

// besideAVictim serves with one worker here and another of its own process, which
// is killed after a third of the time.
func besideAVictim(st *stage) (stop func() error, err error) {
	kill, end, err := inTwoProcesses(st)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	rule, _ := ruleNamed(st.limits, st.binding)
	go st.endCalm(ctx, plain(rule).Ideal(int64(len(st.tasks)))/3, kill)
	return func() error { cancel(); return end() }, nil
}

// byTwoProcesses serves with one worker here and another of its own process.
func byTwoProcesses(st *stage) (stop func() error, err error) {
	_, stop, err = inTwoProcesses(st)
	return stop, err
}

// inTwoProcesses is byTwoProcesses, and also returns what kills the other process.
func inTwoProcesses(st *stage) (kill func(), stop func() error, err error) {
	other := exec.Command(os.Args[0]) //nolint:gosec // this program
	other.Env = append(os.Environ(), victimVariable+"="+st.addr(), policyVariable+"="+string(limitsyaml.Format(st.policy)), apiVariable+"="+st.at.URL(""),
		slotsVariable+"="+strconv.Itoa(st.concurrency()))
	other.Stderr = os.Stderr
	out, err := other.StdoutPipe()
	if err == nil {
		err = other.Start()
	}
	if err != nil {
		return nil, nil, err
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		st.hear(out)
	}()
	kill = func() { _ = other.Process.Kill() } // it may be dead
	ended := func() {
		kill()
		<-heard
		_ = other.Wait()
	}
	end, err := byHeadway(st)
	if err != nil {
		ended()
		return nil, nil, err
	}
	return kill, func() error { ended(); return end() }, nil
}

// endCalm kills after a while, and ends the run when nothing has started for a
// second and no more are missing than one worker can have taken with it.
func (st *stage) endCalm(ctx context.Context, after time.Duration, kill func()) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	began, missing, since := time.Now(), -1, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if kill != nil && time.Since(began) > after {
			kill()
			kill = nil
		}
		if n := len(st.starts.missing()); n != missing {
			missing, since = n, time.Now()
		}
		if kill == nil && missing <= concurrency && time.Since(since) > time.Second {
			st.starts.finish()
			return
		}
	}
}

// hear notes what the other process tells of: pick-ups, each a line, and starts, each a
// moment, a scope and an id.
func (st *stage) hear(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == pickedUp {
			st.picked.Add(1)
		} else if at, rest, ok := strings.Cut(lines.Text(), " "); ok {
			scope, id, _ := strings.Cut(rest, " ")
			if ns, err := strconv.ParseInt(at, 10, 64); err == nil && id != "" {
				st.starts.note(start{job: job{id, scope}, at: time.Unix(0, ns)})
			}
		}
	}
}

const pickedUp = "picked up"

// tellPickUps tells of pick-ups as hear wants them.
type tellPickUps struct{ worker.NoObserver }

func (tellPickUps) PickedUp(string) { fmt.Fprintln(os.Stdout, pickedUp) }

// victim serves until it is killed.
func victim() error {
	slots, err := strconv.Atoi(os.Getenv(slotsVariable))
	if err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(victimVariable), PoolSize: 2 * slots})
	policy, err := limitsyaml.Parse("limits.yaml", []byte(os.Getenv(policyVariable)))
	if err != nil {
		return err
	}
	limiter, err := throttle.New(rdb, policy, throttle.Config{StartTolerance: pad})
	if err != nil {
		return err
	}
	limits, err := worker.NewMiddleware(worker.MiddlewareConfig{Redis: rdb, Limiter: limiter, Observer: tellPickUps{}})
	if err != nil {
		return err
	}
	calls := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * slots}, Timeout: time.Minute}
	return limits.NewServer(asynq.Config{Concurrency: slots, LogLevel: asynq.FatalLevel}).Run(
		asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			at, j := time.Now(), jobOf(ctx, task)
			fmt.Fprintf(os.Stdout, "%d %s %s\n", at.UnixNano(), j.scope, j.id)
			return callOf(ctx, calls, os.Getenv(apiVariable)+j.scope, j.id)
		}))
}
