package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/checker"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

func TestTheFileIsWhatGenWrites(t *testing.T) {
	t.Parallel()
	want, err := os.ReadFile("../tasks.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if err := write(&got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Error("tasks.ndjson is not what gen writes; run go generate ./examples/quickstart")
	}
}

// "at least 3 tenants, 300 calls, all four algorithms, nested scopes, costs
// above 1, tasks with max_retry 0", and all of it passes the policy.
func TestTheQuickstartShowsWhatItShould(t *testing.T) {
	t.Parallel()
	pol, err := limitsyaml.Load("../limits.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := checker.LoadTasks("../tasks.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	tenants, algorithms := map[string]bool{}, map[policy.Algorithm]bool{}
	depth, costly, once := 0, 0, 0
	for _, task := range tasks {
		scope, err := policy.ParseScope(task.Scope)
		if err != nil {
			t.Fatal(err)
		}
		if err := pol.Check(scope, task.Cost); err != nil {
			t.Error(err)
		}
		bounds, err := pol.Match(scope)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range bounds {
			algorithms[b.Rule.Algorithm] = true
		}
		tenants[scope.Names()[1]] = true
		depth = max(depth, scope.Len())
		if task.Cost > 1 {
			costly++
		}
		if task.MaxRetry == 0 {
			once++
		}
	}
	if len(tasks) < 300 || len(tenants) < 3 || len(algorithms) != 4 || depth < 3 || costly < 50 || once < 50 {
		t.Errorf("%d tasks, tenants %v, algorithms %v, %d levels, %d above cost 1, %d with max_retry 0",
			len(tasks), tenants, algorithms, depth, costly, once)
	}
}

func TestEveryLineIsATask(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../tasks.ndjson")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(data) {
		if _, err := queue.ParseLine(bytes.TrimSpace(line)); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}
