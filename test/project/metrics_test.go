package project

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headway-go/headway/worker/metrics"
)

var (
	metricRow  = regexp.MustCompile("(?m)^\\| `(headway_[a-z_]+)` \\| (?:counter|gauge|histogram) \\| ((?:`[a-z]+`(?:, )?)*) ?\\|")
	metricDesc = regexp.MustCompile(`fqName: "([a-z_]+)".*variableLabels: \{([a-z,]*)\}`)
	errorKind  = regexp.MustCompile(`\.Failed\("([a-z_]+)"\)`)
)

// "A test holds the tables against the code": each metric by its labels.
func TestMetricsAreAsWritten(t *testing.T) {
	t.Parallel()
	written, text := documentedMetrics(t)
	actual := map[string]string{}
	descs := make(chan *prometheus.Desc, 100)
	metrics.New(metrics.Config{Version: "v1"}).Describe(descs)
	close(descs)
	for d := range descs {
		m := metricDesc.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		actual[m[1]] = m[2]
	}
	if !maps.Equal(written, actual) {
		t.Errorf("docs/metrics.md has %v, the code %v", written, actual)
	}

	files, err := filepath.Glob(filepath.Join(root, "worker", "*.go"))
	must(t, err)
	var kinds []string
	for _, file := range files {
		source, err := os.ReadFile(file)
		must(t, err)
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range errorKind.FindAllStringSubmatch(string(source), -1) {
			kinds = append(kinds, m[1])
		}
	}
	slices.Sort(kinds)
	for _, kind := range slices.Compact(kinds) {
		if !strings.Contains(text, "`"+kind+"`:") {
			t.Errorf("docs/metrics.md does not tell of errors of kind %s", kind)
		}
	}
}

// documentedMetrics returns the labels of each metric of docs/metrics.md, and the page.
func documentedMetrics(t *testing.T) (labels map[string]string, text string) {
	t.Helper()
	text = read(t, "docs/metrics.md")
	labels = map[string]string{}
	for _, m := range metricRow.FindAllStringSubmatch(text, -1) {
		labels[m[1]] = strings.NewReplacer("`", "", " ", "").Replace(m[2])
	}
	return labels, text
}
