package mailer_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	mailer "github.com/headway-go/headway/examples/testing"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/throttletest"
	"github.com/headway-go/headway/worker"
)

const limitsYAML = `
limits:
  mail:
    rules:
      - {name: minute, algorithm: fixed-window, limit: 6, per: 1m}
`

func TestHandler(t *testing.T) {
	deliver := func(context.Context, string) error { return nil }
	err := mailer.Handler(deliver).ProcessTask(t.Context(), asynq.NewTask("mail:acme", []byte("nowhere")))
	if !errors.Is(err, asynq.SkipRetry) {
		t.Errorf("a task without an address: %v", err)
	}
}

func TestPutOff(t *testing.T) {
	limiter := throttletest.Script(throttletest.Allow(), throttletest.Fail(throttle.ErrMaxWait))
	var delivered []string
	s := mailer.Sender{Limiter: limiter, Deliver: func(_ context.Context, to string) error {
		delivered = append(delivered, to)
		return nil
	}}
	if err := s.Send(t.Context(), "acme", "a@example.com"); err != nil {
		t.Error(err)
	}
	if err := s.Send(t.Context(), "acme", "b@example.com"); !errors.Is(err, mailer.ErrLater) {
		t.Errorf("a mail that is put off: %v", err)
	}
	if len(delivered) != 1 {
		t.Errorf("delivered: %v", delivered)
	}
	if asked := limiter.Requests(); len(asked) != 2 || asked[0].Scope != "mail/acme" || asked[0].Cost != 1 {
		t.Errorf("the limiter was asked for %+v", asked)
	}
}

func TestSixAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := throttletest.New(t, throttletest.Policy(t, limitsYAML))
		s := mailer.Sender{Limiter: limiter, Deliver: func(context.Context, string) error { return nil }}
		began := time.Now()
		for range 13 {
			if err := s.Send(t.Context(), "acme", "a@example.com"); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 2*time.Minute {
			t.Errorf("13 mails took %s", took)
		}
	})
}

func TestDayEndsInLosAngeles(t *testing.T) {
	rules := throttletest.Policy(t, `
limits:
  mail:
    rules:
      - {name: daily, algorithm: calendar, limit: 1, resets: "0 0 * * *", timezone: America/Los_Angeles}
`)
	limiter, server := throttletest.NewWithRedis(t, rules)
	for _, tt := range []struct {
		at      string
		allowed bool
	}{
		{"2026-03-08T07:59:00Z", true},  // 23:59 on the day before clocks change
		{"2026-03-08T07:59:30Z", false}, // the day's one mail is sent
		{"2026-03-08T08:00:00Z", true},  // midnight, UTC-8
		{"2026-03-09T06:59:00Z", false}, // this day has 23 hours
		{"2026-03-09T07:00:00Z", true},  // midnight, UTC-7
	} {
		at, err := time.Parse(time.RFC3339, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		server.SetTime(at)
		d, err := limiter.Allow(t.Context(), "mail/acme")
		if err != nil || d.Allowed != tt.allowed {
			t.Errorf("at %s: allowed %t, want %t: %v", tt.at, d.Allowed, tt.allowed, err)
		}
	}
}

func TestOutage(t *testing.T) {
	limiter, server := throttletest.NewWithRedis(t, throttletest.Policy(t, limitsYAML))
	server.Close()
	if _, err := limiter.Allow(t.Context(), "mail/acme"); !errors.Is(err, throttle.ErrUnavailable) {
		t.Errorf("without Redis: %v", err)
	}
}

func TestLimitedTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := throttletest.Policy(t, limitsYAML)
		_, memory := throttletest.NewWithRedis(t, rules)
		rdb := memory.Client()
		limits, err := worker.New(rdb, worker.Config{
			Limits:    rules,
			Spends:    func(*asynq.Task) (scope string, cost int64) { return "mail/acme", 1 },
			Logger:    slog.New(slog.DiscardHandler),
			NoMetrics: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		client := asynq.NewClientFromRedisClient(rdb)
		for range 13 {
			if _, err := client.Enqueue(asynq.NewTask("mail:acme", []byte("a@example.com")), asynq.MaxRetry(0)); err != nil {
				t.Fatal(err)
			}
		}
		delivered := make(chan time.Duration)
		began := time.Now()
		server := limits.NewServer(asynq.Config{Concurrency: 8})
		if err := server.Start(mailer.Handler(func(context.Context, string) error {
			delivered <- time.Since(began)
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		defer server.Shutdown()
		for i := range 13 {
			want := time.Duration(i/6) * time.Minute
			if at := <-delivered; at < want || at > want+time.Second {
				t.Errorf("mail %d was delivered after %s, want %s", i+1, at, want)
			}
		}
	})
}
