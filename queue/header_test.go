package queue_test

import (
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle/policy"
)

func TestReadSpec(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		headers map[string]string
		want    queue.Spec
		ok      bool
	}{
		"no headers":      {nil, queue.Spec{}, false},
		"foreign headers": {map[string]string{"trace": "1"}, queue.Spec{}, false},
		"scope alone": {
			map[string]string{"headway-scope": "payments/acme"},
			queue.Spec{Scope: "payments/acme", Cost: 1, Budget: queue.NoBudget}, true,
		},
		"cost by unit": {
			map[string]string{"headway-scope": "a", "headway-cost": "requests=1,tokens=1500"},
			queue.Spec{Scope: "a", Costs: policy.Costs{"requests": 1, "tokens": 1500}, Budget: queue.NoBudget}, true,
		},
		"all": {
			map[string]string{
				"headway-scope": "a", "headway-cost": "7", "headway-max-retry": "0", "headway-id": "i", "trace": "1",
				"headway-deadline": "2030-01-31T12:00:00.000000001Z", "headway-timeout": "1m30s", "headway-priority": "-4",
				"headway-max-wait": "1m0.5s", "headway-due": "2030-01-30T12:00:00.5Z",
			},
			queue.Spec{
				Scope: "a", Cost: 7, Budget: 0, ID: "i", Timeout: 90 * time.Second, Priority: -4,
				Deadline: time.Date(2030, 1, 31, 12, 0, 0, 1, time.UTC),
				MaxWait:  60500 * time.Millisecond, Due: time.Date(2030, 1, 30, 12, 0, 0, 5e8, time.UTC),
			}, true,
		},
	} {
		got, ok, err := queue.ReadSpec(asynq.NewTaskWithHeaders("x", nil, tt.headers))
		if !reflect.DeepEqual(got, tt.want) || ok != tt.ok || err != nil {
			t.Errorf("%s: %+v %v %v", name, got, ok, err)
		}
	}
	if _, ok, err := queue.ReadSpec(asynq.NewTask("x", nil)); ok || err != nil {
		t.Errorf("plain task: %v %v", ok, err)
	}
}

// TestReadSpecDamaged holds that a header with a damaged value is a typed error
// that names it, and never a default.
func TestReadSpecDamaged(t *testing.T) {
	t.Parallel()
	for name, values := range map[string][]string{
		"headway-scope":     {"", "/", "*", "a//b"},
		"headway-cost":      {"", "0", "-1", "+1", "1.0", "1e3", " 1", "x", "1000000000001", "99999999999999999999"},
		"headway-max-retry": {"", "-1", "x", "1000001"},
		"headway-deadline":  {"", "tomorrow", "2030-01-31"},
		"headway-timeout":   {"", "0s", "-1s", "5", "1ns", "99999h"},
		"headway-max-wait":  {"", "0s", "-1s", "5", "1ns", "99999h"},
		"headway-due":       {"", "now", "1767225600"},
		"headway-priority":  {"", "1.5", "99999999"},
	} {
		for _, value := range values {
			headers := map[string]string{"headway-scope": "a"}
			headers[name] = value
			_, ok, err := queue.ReadSpec(asynq.NewTaskWithHeaders("x", nil, headers))
			he, damaged := errors.AsType[*queue.HeaderError](err)
			if ok || !damaged || he.Header != name || he.Value != value || he.Error() == "" {
				t.Errorf("%s %q: %v %v", name, value, ok, err)
			}
		}
	}
	http := asynq.NewTaskWithHeaders("http", nil, map[string]string{"headway-scope": "a", "headway-cost": "requests=0,tokens=1"})
	if _, ok, err := queue.ReadSpec(http); ok || err == nil || !strings.Contains(err.Error(), `0 requests; a task of type "http" sends one`) {
		t.Errorf("a request that costs none: %v %v", ok, err)
	}
	for _, headers := range []map[string]string{nil, {"headway-scope": "a"}} {
		_, ok, err := queue.ReadSpec(asynq.NewTaskWithHeaders("headway:carry", nil, headers))
		if reserved, refused := errors.AsType[*queue.ReservedTypeError](err); ok || !refused || reserved.Type != "headway:carry" {
			t.Errorf("a type of Headway's own: %v %v", ok, err)
		}
	}
	for name := range maps.Keys(map[string]bool{"headway-cost": true, "headway-id": true, "headway-max-retry": true}) {
		_, ok, err := queue.ReadSpec(asynq.NewTaskWithHeaders("x", nil, map[string]string{name: "1"}))
		if he, damaged := errors.AsType[*queue.HeaderError](err); ok || !damaged || he.Header != "headway-scope" {
			t.Errorf("%s without a scope: %v %v", name, ok, err)
		}
	}
}
