package worker

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headway-go/headway/queue"
)

// "A completed task keeps no text of having waited", and the text of a real failure stays.
func TestCompletedTaskHasNotFailed(t *testing.T) {
	t.Parallel()
	s := newSystem(t, perSecond(1), MiddlewareConfig{Hold: -1, OnMaxWait: WaitOn()})
	for _, id := range []string{"a", "b", "c"} {
		s.add(queue.Task{ID: id, Remember: time.Hour})
	}
	s.addForeign("foreign", asynq.Retention(time.Hour), asynq.MaxRetry(3))
	s.add(queue.Task{ID: "unlucky", Remember: time.Hour, MaxWait: time.Hour})
	s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 0 }},
		func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			if n, _ := asynq.GetRetryCount(ctx); n == 0 && id == "unlucky" {
				return errors.New("bad luck")
			}
			return nil
		})
	for id, want := range map[string]string{"a": "", "b": "", "c": "", "foreign": "", "unlucky": "bad luck"} {
		s.until(id+" is completed", func() bool {
			info := s.info(id)
			return info != nil && info.State == asynq.TaskStateCompleted
		})
		info := s.info(id)
		if info.LastErr != want || info.LastFailedAt.IsZero() != (want == "") || info.Retention != time.Hour || info.CompletedAt.IsZero() {
			t.Errorf("%s: last error %q at %s, completed at %s; want %q", id, info.LastErr, info.LastFailedAt, info.CompletedAt, want)
		}
	}
	if n := s.seen.get(func(o *seen) int { return o.rescheduled }); n < 3 {
		t.Errorf("only %d reschedules: the test did not limit", n)
	}
}

// What is no message of asynq's goes on as it is, and so does every other script.
func TestCleanMessage(t *testing.T) {
	t.Parallel()
	field := func(b []byte, number protowire.Number, text string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), text)
	}
	failed := func(b []byte, text string) []byte {
		b = protowire.AppendVarint(protowire.AppendTag(b, fieldLastFailedAt, protowire.VarintType), 7)
		return field(b, fieldErrorMsg, text) // in no order
	}
	plain := field(nil, 1, "work")
	keys := []string{"asynq:{q}:active", "asynq:{q}:lease", "asynq:{q}:completed"}
	for _, c := range []struct {
		keys     []string
		in, want []byte
	}{
		{keys, failed(plain, waitingText+": p/a"), plain},
		{keys, failed(plain, "boom"), failed(plain, "boom")},
		{keys, failed(plain, "boom: "+waitingText), failed(plain, "boom: "+waitingText)},
		{keys, []byte(waitingText + "\xff\xff"), []byte(waitingText + "\xff\xff")},
		{[]string{keys[0], keys[1], "asynq:{q}:retry"}, failed(nil, waitingText), failed(nil, waitingText)},
	} {
		args := []any{"id", 1, 2, c.in, 3}
		got := withoutOurText(c.keys, args)
		if clean, _ := got[messageArg].([]byte); !bytes.Equal(clean, c.want) || len(got) != len(args) {
			t.Errorf("%q became %q, want %q", c.in, clean, c.want)
		}
		if kept, _ := args[messageArg].([]byte); !bytes.Equal(kept, c.in) {
			t.Errorf("the caller's %q became %q", c.in, kept)
		}
	}
}
