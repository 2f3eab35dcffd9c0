package project

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/throttle/limitsyaml"
	userspage "github.com/headway-go/headway/worker/page"
)

// Every YAML block is a policy that the limiter takes, a file of schedules or of users, or what TestDeploy, TestKubernetes or
// TestLimitsConvert reads.
func TestYAMLBlocks(t *testing.T) {
	t.Parallel()
	for _, b := range blocks(t, "yaml") {
		if isManifest(b) || strings.HasPrefix(b.text, "# tree.yaml\n") || strings.HasPrefix(b.text, "groups:") {
			continue
		}
		if strings.HasPrefix(b.text, "schedules:") {
			if _, err := schedule.Parse(fmt.Sprintf("%s:%d", b.path, b.line), []byte(b.text)); err != nil {
				t.Error(err)
			}
			continue
		}
		if strings.HasPrefix(strings.TrimSpace(b.text), "people:") {
			if _, err := userspage.LoadUsers(writeFile(t, "users.yaml", b.text)); err != nil {
				t.Errorf("%s:%d: %v", b.path, b.line, err)
			}
			continue
		}
		if _, err := limitsyaml.Parse(fmt.Sprintf("%s:%d", b.path, b.line), []byte(b.text)); err != nil {
			t.Error(err)
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
