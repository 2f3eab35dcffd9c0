package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/policy"
)

// What a record has of each attempt: when it wanted to start, its run, what it was settled to, and how it ended. docs/replay.md has the fields.
func TestRecordedRuns(t *testing.T) {
	t.Parallel()
	inFakeTime(t, tokensPerHour(1000), func(s *system) {
		t := s.t
		var text bytes.Buffer
		record, err := demand.NewRecorder(demand.Config{Out: &text})
		must(t, err)
		s.throttle.cfg.Record = record
		ctx, end := context.WithCancel(t.Context())
		var recording sync.WaitGroup
		recording.Go(func() { record.Run(ctx, nil) })
		began := time.Now()
		s.add(queue.Task{ID: "settles", Priority: 1, Costs: policy.Costs{"tokens": 700}})
		s.add(queue.Task{ID: "fails", MaxRetry: queue.Retries(1)})
		s.add(queue.Task{ID: "deferred", Scope: "p/b"})
		s.add(queue.Task{ID: "delayed", Scope: "p/c", Delay: 5 * time.Second})
		s.add(queue.Task{ID: "refused", Scope: "p/d", Cost: 5000})
		s.addForeign("foreign")
		first := map[string]bool{}
		s.serve(asynq.Config{Concurrency: 1, RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second }}, func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			<-time.After(100 * time.Millisecond)
			again := first[id]
			first[id] = true
			switch {
			case id == "settles":
				_, err := Settle(ctx, policy.Costs{"tokens": 50})
				return err
			case id == "fails" && !again:
				return errors.New("it failed")
			case id == "deferred" && !again:
				return ReportStatus(ctx, http.StatusTooManyRequests, retryAfterMS(2000)).Err()
			}
			return nil
		})
		s.haveEnded(7)
		s.is("refused", asynq.TaskStateArchived)
		end()
		recording.Wait()
		var got []string
		err = demand.Read(&text, func(l *demand.Line) error {
			if l.V == 0 && l.Outcome != "" {
				wanted, took := time.UnixMicro(l.Wanted).Sub(began).Round(time.Second), time.Duration(l.Ended-l.Started)*time.Microsecond
				if l.Started == 0 {
					took = 0
				}
				got = append(got, fmt.Sprintf("%s %s +%s ran %s, cost %d %v used %v, priority %d, retried %d, status %d",
					l.Scope, l.Outcome, wanted, took.Round(10*time.Millisecond), l.Cost, l.Costs, l.Used, l.Priority, l.Retried, l.Status))
			}
			return nil
		})
		must(t, err)
		want := []string{
			"p/a ok +0s ran 100ms, cost 0 tokens=700 used tokens=50, priority 1, retried 0, status 0",
			"p/a failed +0s ran 100ms, cost 1  used , priority 0, retried 0, status 0",
			"p/a ok +0s ran 100ms, cost 1  used , priority 0, retried 0, status 0",
			"p/b deferred +0s ran 100ms, cost 1  used , priority 0, retried 0, status 429",
			"p/b ok +0s ran 100ms, cost 1  used , priority 0, retried 0, status 0",
			"p/c ok +5s ran 100ms, cost 1  used , priority 0, retried 0, status 0",
			"p/d refused +0s ran 0s, cost 5000  used , priority 0, retried 0, status 0",
		}
		retry := slices.IndexFunc(got, func(line string) bool { return bytes.Contains([]byte(line), []byte("retried 1")) })
		if retry < 0 {
			t.Fatalf("no retry in %q", got)
		}
		got = slices.Delete(got, retry, retry+1) // asynq says when it comes
		slices.SortFunc(got, cmp.Compare)
		slices.SortFunc(want, cmp.Compare)
		if !slices.Equal(got, want) {
			t.Errorf("got\n%q\nwant\n%q", got, want)
		}
	})
}
