package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/llm"
	"github.com/headway-go/headway/throttle/upstream"
)

const judgedLimits = `
limits:
  p:
    answers:
      dialect: shopify
      also: [{status: 409, body: busy, wait: 1s, scope: p, burns: true}]
    rules:
      - {name: points, algorithm: fixed-window, limit: 1000, per: 24h, unit: points}
      - {name: calls, algorithm: sliding-window, limit: 1000, per: 1h}
`

func answered(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
}

// ReportResponse returns what an answer means, settles what the call has cost, and leaves the body; an answer that burns an attempt is
// retried as a failure is, when the API wants to be called again.
func TestJudgement(t *testing.T) {
	t.Parallel()
	limits, err := limitsyaml.Parse("limits.yaml", []byte(judgedLimits))
	must(t, err)
	inFakeTimeUnder(t, limits, MiddlewareConfig{}, func(s *system) {
		attempts := 0
		s.serve(asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Second }}, func(ctx context.Context, _ *asynq.Task) error {
			const paid = `{"data": {}, "extensions": {"cost": {"requestedQueryCost": 100, "actualQueryCost": 12}}}`
			switch id, _ := asynq.GetTaskID(ctx); id {
			case "costs":
				resp := answered(200, paid)
				judged := ReportResponse(ctx, resp)
				if body, err := io.ReadAll(resp.Body); judged.Err() != nil || judged.Limited || judged.Failed || string(body) != paid || err != nil {
					t.Errorf("%+v, body %q, %v", judged, body, err)
				}
				return nil
			case "burns":
				if attempts++; attempts > 1 {
					return nil
				}
				judged := ReportResponse(ctx, answered(409, "I am busy"))
				var asks Retrier
				if err := judged.Err(); judged.Scope != "p" || judged.Until.IsZero() || errors.As(err, &asks) != true || fmt.Sprint(err) != "headway: the API answered 409 and does not say when to come back" {
					t.Errorf("%+v, %v", judged, err)
				}
				return judged.Err()
			}
			judged := ReportHint(ctx, upstream.Hint{Failed: true, Status: 14})
			if fmt.Sprint(judged.Err()) != "headway: the API answered 14" || !judged.Failed {
				t.Errorf("%+v", judged)
			}
			return nil
		})
		s.add(queue.Task{ID: "costs", Scope: "p", Costs: map[string]int64{"requests": 1, "points": 100}})
		s.add(queue.Task{ID: "hint", Scope: "p/x"})
		s.finish(2)
		d, err := s.throttle.cfg.Limiter.Peek(s.t.Context(), throttle.Request{Scope: "p"})
		if err != nil || d.Rules[0].Remaining != 1000-12-1 || d.Rules[1].Remaining != 998 {
			t.Errorf("%+v, %v: 13 points are spent, since the task without costs takes one, and two calls", d, err)
		}
		s.add(queue.Task{ID: "burns", Scope: "p/x"})
		s.haveEnded(2)
		s.until("it is done", func() bool { return s.info("burns") == nil })
		if attempts != 2 {
			t.Errorf("%d attempts", attempts)
		}
		if _, failed := s.counters(); failed != 1 {
			t.Errorf("%d failures; the one that burns is one", failed)
		}
	})
}

// docs/llm.md: with the dialect of a vendor, the end of the body settles, and an error has cost no money.
func TestUsageSettles(t *testing.T) {
	t.Parallel()
	limits, err := limitsyaml.Parse("limits.yaml", []byte(`
limits:
  p:
    answers: openai
    hosts: [api.test]
    rules:
      - {name: tokens, algorithm: sliding-window, limit: 10000, per: 24h, unit: tokens}
      - {name: money, algorithm: calendar, limit: 10000, resets: "@monthly", unit: usd}
`))
	must(t, err)
	prices, err := llm.NewPrices(map[string]llm.Price{"gpt-5.5*": {"input": 1, "output": 10}})
	must(t, err)
	var log says
	inFakeTimeUnder(t, limits, MiddlewareConfig{Prices: prices, Logger: logTo(&log)}, func(s *system) {
		s.serve(asynq.Config{}, func(ctx context.Context, _ *asynq.Task) error {
			id, _ := asynq.GetTaskID(ctx)
			status, host := 200, "api.test"
			switch id {
			case "error":
				status = 400
			case "elsewhere":
				host = "other.test"
			}
			body := `{"model": "gpt-5.5-mini", "usage": {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}}`
			if strings.HasPrefix(id, "silent") {
				body = "data: [DONE]\n\n"
			}
			resp := answered(status, body)
			resp.Request = &http.Request{URL: &url.URL{Scheme: "https", Host: host}}
			ReportResponse(ctx, resp)
			_, err := io.Copy(io.Discard, resp.Body)
			return errors.Join(err, resp.Body.Close())
		})
		for _, id := range []string{"settles", "error", "elsewhere", "silent", "silent too"} {
			s.add(queue.Task{ID: id, Scope: "p/x", Costs: map[string]int64{"tokens": 1000, "usd": 1000}})
		}
		s.finish(5)
		d, err := s.throttle.cfg.Limiter.Peek(s.t.Context(), throttle.Request{Scope: "p"})
		if err != nil || d.Rules[0].Remaining != 10000-120-4*1000 || d.Rules[1].Remaining != 10000-300-0-3*1000 {
			t.Errorf("%+v, %v", d.Rules, err)
		}
		if text := log.String(); strings.Count(text, "answer does not say what it used; its charge stays as it was estimated") != 1 {
			t.Errorf("the log: %s", text)
		}
	})
}

// "Outside of a handler it only reads the answer."
func TestJudgementOutside(t *testing.T) {
	t.Parallel()
	limited := ReportResponse(t.Context(), &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"9"}}, Body: http.NoBody})
	named := ReportHint(t.Context(), upstream.Hint{Limited: true, Status: 8, Retry: time.Minute, RetryKnown: true, Names: []string{"a", "b"}})
	if !limited.Limited || limited.Retry != 9*time.Second || fmt.Sprint(named.Err()) != "headway: the API answered 8 (a, b) and asks to come back in 1m0s" {
		t.Errorf("%+v, %v", limited, named.Err())
	}
}
