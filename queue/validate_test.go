package queue_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/headway-go/headway/queue"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	deadline := time.Now().Add(time.Hour)
	for name, tt := range map[string]struct {
		task queue.Task
		want string // reasons; empty for a valid task
	}{
		"mail":    {queue.Task{Type: "mail", Scope: "a"}, ""},
		"http":    {queue.Task{Type: queue.TypeHTTP, Scope: "a", HTTP: &queue.HTTP{URL: "HTTPS://h:8080/p?q=1#f"}}, ""},
		"all set": {queue.Task{Type: "mail", Scope: "a/b/c", ID: "i", Cost: 2, Queue: "Q-1_.x", MaxRetry: queue.Retries(0), Delay: time.Second, Timeout: time.Second, Deadline: deadline, Priority: 1, MaxWait: time.Second, Remember: time.Second, Payload: []byte(" {} ")}, ""},

		"zero": {queue.Task{}, `type: required; "http" for an outbound request, or a type that a Go program has registered; ` +
			"scope: required; the path it spends from, such as payments/acme"},
		"every fault": {
			queue.Task{
				Type: "a\x01", Scope: "a//b", ID: "\xff", Cost: -1, Queue: "ä", MaxRetry: queue.Retries(-1),
				Delay: -time.Second, Timeout: time.Nanosecond, Priority: 1e9, MaxWait: -time.Hour, Remember: 11 * 365 * 24 * time.Hour,
				Deadline: time.Unix(0, 0).UTC(), Payload: []byte("{"), HTTP: &queue.HTTP{},
			},
			`type: "a\x01" holds a control character; scope: "a//b": name 2 is empty; write 1 to 128 bytes; id: not valid UTF-8; ` +
				`cost: -1 is below 1; queue: "ä"; a queue name is letters, digits, _, - and .; max_retry: -1 is below 0; ` +
				"priority: 1000000000 is above 1000000; delay: -1s is negative; timeout: 1ns is below a microsecond; " +
				"remember: 96360h0m0s is above ten years (3650d); max_wait: -1h0m0s is negative; deadline: 1970-01-01T00:00:00Z has passed; " +
				`payload: not one JSON value, in UTF-8; http: only a task of type "http" has it; others carry a payload`,
		},
		"empty payload":         {queue.Task{Type: "mail", Scope: "a", Payload: []byte{}}, "payload: not one JSON value, in UTF-8"},
		"binary body":           {queue.Task{Type: "http", Scope: "a", HTTP: &queue.HTTP{URL: "http://h", Body: "\xff"}}, "http.body: not valid UTF-8; a binary body cannot be carried as text"},
		"a star":                {queue.Task{Type: "mail", Scope: "a/*"}, `scope: "a/*": name 2 is "*", which stands for every name in limits.yaml; write the name itself`},
		"hostile scope":         {queue.Task{Type: "mail", Scope: "{a}:* b/é"}, ""},
		"deadline before delay": {queue.Task{Type: "mail", Scope: "a", Delay: 2 * time.Hour, Deadline: deadline}, "deadline: " + deadline.Format(time.RFC3339) + " comes before the delay of 2h0m0s has passed"},
	} {
		err := tt.task.Validate()
		got := ""
		if invalid, ok := errors.AsType[*queue.InvalidError](err); ok {
			got = invalid.Reasons()
		}
		if got != tt.want || (err == nil) != (tt.want == "") {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, tt.want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "-0s": 0, "1us": time.Microsecond, "500ms": 500 * time.Millisecond, "1h30m": 90 * time.Minute,
		"30d": 720 * time.Hour, "0d": 0, "3650d": 3650 * 24 * time.Hour, "87600h": 3650 * 24 * time.Hour,
	} {
		if got, err := queue.ParseDuration(text); got != want || err != nil {
			t.Errorf("%q: %v %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "no duration", "5": "no duration", "d": "no duration", "1d2h": "no duration", "x": "no duration", "1e3s": "no duration",
		"1ns": "below a microsecond", "0.9us": "below a microsecond", "-1ns": "negative", "-1d": "negative",
		"3651d": "ten years", "99999999999h": "ten years", "1h99999999999999999999h": "ten years",
	} {
		if got, err := queue.ParseDuration(text); err == nil || !strings.Contains(err.Error(), want) || got != 0 {
			t.Errorf("%q: %v %v, want an error with %q", text, got, err, want)
		}
	}
}
