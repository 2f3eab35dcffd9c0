package project

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/throttle/limitsyaml"
	userspage "github.com/headway-go/headway/worker/page"
)

// Every YAML block is a policy that the limiter takes, a file of schedules, rules of Prometheus, or what TestKubernetes or
// TestLimitsConvert reads.
func TestYAMLBlocks(t *testing.T) {
	t.Parallel()
	for _, b := range blocks(t, "yaml") {
		if isManifest(b) || strings.HasPrefix(b.text, "# tree.yaml\n") {
			continue
		}
		if strings.HasPrefix(b.text, "groups:") {
			checkAlerts(t, b)
			continue
		}
		if strings.HasPrefix(b.text, "schedules:") {
			if _, err := schedule.Parse(fmt.Sprintf("%s:%d", b.path, b.line), []byte(b.text)); err != nil {
				t.Error(err)
			}
			continue
		}
		if strings.HasPrefix(strings.TrimSpace(b.text), "people:") {
			path := filepath.Join(t.TempDir(), "users.yaml")
			if err := os.WriteFile(path, []byte(b.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := userspage.LoadUsers(path); err != nil {
				t.Errorf("%s:%d: %v", b.path, b.line, err)
			}
			continue
		}
		if _, err := limitsyaml.Parse(fmt.Sprintf("%s:%d", b.path, b.line), []byte(b.text)); err != nil {
			t.Error(err)
		}
	}
}

// checkAlerts reads a block as the rules of Prometheus. Their metrics are those that docs/metrics.md has.
func checkAlerts(t *testing.T, b block) {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	if err := yaml.Unmarshal([]byte(b.text), &file); err != nil || len(file.Groups) == 0 || len(file.Groups[0].Rules) == 0 {
		t.Errorf("%s:%d: %v, or no rules", b.path, b.line, err)
		return
	}
	known, _ := documentedMetrics(t)
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			for _, name := range regexp.MustCompile(`headway_\w+`).FindAllString(rule.Expr, -1) {
				if _, is := known[name]; !is || rule.Alert == "" {
					t.Errorf("%s:%d: alert %q asks for %s, which is not in docs/metrics.md", b.path, b.line, rule.Alert, name)
				}
			}
		}
	}
}

// Every NDJSON block is tasks that enqueue batch takes.
func TestNDJSONBlocks(t *testing.T) {
	t.Parallel()
	for _, b := range blocks(t, "ndjson") {
		for e := range queue.NewReader(strings.NewReader(b.text)).All() {
			if e.Err != nil {
				t.Errorf("%s:%d: %v", b.path, b.line+e.Line, e.Err)
			}
		}
	}
}

// Every JSON block is objects, one a line or one over many.
func TestJSONBlocks(t *testing.T) {
	t.Parallel()
	for _, b := range blocks(t, "json") {
		dec := json.NewDecoder(strings.NewReader(b.text))
		for dec.More() {
			var v map[string]any
			if err := dec.Decode(&v); err != nil {
				t.Errorf("%s:%d: %v", b.path, b.line, err)
				break
			}
		}
	}
}

// The faults that docs/limits-yaml.md shows are those of this file.
func TestFaultsAsShown(t *testing.T) {
	t.Parallel()
	const faulty = `limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 200, per: 1sec}
      - {name: tenant, algorithm: sliding-window, per: 1s, limt: 20}
`
	_, err := limitsyaml.Parse("limits.yaml", []byte(faulty))
	if err == nil {
		t.Fatal("no error")
	}
	var shown []string
	for _, b := range blocks(t, "text") {
		if strings.HasSuffix(b.path, "limits-yaml.md") && strings.HasPrefix(b.text, "limits.yaml:") {
			shown = append(shown, strings.Split(strings.TrimSpace(b.text), "\n")...)
		}
	}
	if len(shown) == 0 {
		t.Fatal("docs/limits-yaml.md shows no faults")
	}
	for _, line := range shown {
		if !strings.Contains(err.Error()+"\n", line+"\n") {
			t.Errorf("docs/limits-yaml.md shows\n%s, and the error is\n%v", line, err)
		}
	}
}
