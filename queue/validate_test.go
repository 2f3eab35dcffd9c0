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
	for text, want := range map[string]string{
		"0": "0s", "-0s": "0s", "1us": "1µs", "1h30m": "1h30m0s", "30d": "720h0m0s", "3650d": "87600h0m0s",
		"": "is no duration", "5": "is no duration", "1ns": "is below a microsecond", "0.1ns": "is below a microsecond", "-1ns": "is negative",
		"3651d": "is above ten years", "99999999999h": "is above ten years",
	} {
		got, err := queue.ParseDuration(text)
		if err == nil && got.String() != want || err != nil && (got != 0 || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v %v, want %s", text, got, err, want)
		}
	}
}
