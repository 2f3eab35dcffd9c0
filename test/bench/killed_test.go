package bench

import (
	"context"
	"testing"
	"time"
)

// BenchmarkKilled asks what is left of the quota when one of two workers is killed at full rate. What it had taken is stranded
// until asynq finds that its lease is over, half a minute later and more: those tasks are missing among the started, and not lost.
func BenchmarkKilled(b *testing.B) {
	for _, s := range []scenario{
		single("2000 at 100/s, one of two workers killed", 2000, bucket("r", 100, time.Second, 1)),
		single("5000 at 1000/s, one of two workers killed", 5000, bucket("r", 1000, time.Second, 1)),
	} {
		if !long() {
			s.tasks = s.tasks[:len(s.tasks)/10]
		}
		s.workers = 2
		killed := builtPrograms
		killed.serve = besideAVictim
		measure(b, s, killed)
	}
}

// besideAVictim has one of the workers killed after a third of the time.
func besideAVictim(st *stage) (stop func() error, err error) {
	end, err := byWorkers(st)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	rule, _ := ruleNamed(st.limits, st.binding)
	go st.endCalm(ctx, plain(rule).Ideal(int64(len(st.tasks)))/3, func() {
		st.built.read(ctx)
		st.built.workers[0].Kill()
	})
	return func() error { cancel(); return end() }, nil
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
