package project

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/worker/metrics"
)

const deploy = "examples/deploy"

var (
	metricName  = regexp.MustCompile(`\bheadway_[a-z_]+`)
	selector    = regexp.MustCompile(`(headway_[a-z_]+)\{([^}]*)\}`)
	matcher     = regexp.MustCompile(`([a-z]+)\s*(?:=~|!~|!=|=)`)
	byLabels    = regexp.MustCompile(`\bby \(([^)]*)\)`)
	ofHistogram = regexp.MustCompile(`_(?:bucket|sum|count)$`)
)

// promtool is Prometheus' own: test/setup.sh installs it.
func promtool(t *testing.T, args ...string) (said string, err error) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		path = filepath.Join(root, "bin", "promtool")
		if _, err := os.Stat(path); err != nil {
			t.Fatal("no promtool on the PATH or in bin/: run test/setup.sh -promtool, or install your system's prometheus")
		}
	}
	if path, err = filepath.Abs(path); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	return string(out), err
}

// documents reads the YAML documents of a file of examples/deploy.
func documents(t *testing.T, name string) (all []map[string]any) {
	t.Helper()
	dec := yaml.NewDecoder(strings.NewReader(read(t, deploy+"/"+name)))
	for {
		var one map[string]any
		err := dec.Decode(&one)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all = append(all, one)
	}
}

// at is what stands at a path of keys and indices.
func at(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch step := step.(type) {
		case string:
			v = v.(map[string]any)[step]
		case int:
			v = v.([]any)[step]
		}
		if v == nil {
			t.Fatalf("nothing stands at %v", path)
		}
	}
	return v
}

// values are all texts that stand under a key, wherever that is.
func values(v any, key string) (all []string) {
	switch v := v.(type) {
	case map[string]any:
		for k, below := range v {
			if text, is := below.(string); is && k == key {
				all = append(all, text)
			}
			all = append(all, values(below, key)...)
		}
	case []any:
		for _, below := range v {
			all = append(all, values(below, key)...)
		}
	}
	slices.Sort(all)
	return all
}

func board(t *testing.T) (v any) {
	t.Helper()
	must(t, json.Unmarshal([]byte(read(t, deploy+"/grafana/headway.json")), &v))
	return v
}

// expressions are all PromQL of examples/deploy and of the alerts in docs/, by where they stand.
func expressions(t *testing.T) map[string][]string {
	t.Helper()
	all := map[string][]string{
		"the board":   values(board(t), "expr"),
		"alerts.yaml": values(documents(t, "alerts.yaml")[0], "expr"),
		"keda.yaml":   {at(t, documents(t, "keda.yaml")[0], "spec", "triggers", 0, "metadata", "query").(string)},
	}
	for _, m := range regexp.MustCompile(`metricsQuery: (.*)`).FindAllStringSubmatch(read(t, deploy+"/hpa.yaml"), -1) {
		all["hpa.yaml"] = append(all["hpa.yaml"], m[1])
	}
	for _, b := range blocks(t, "yaml") {
		for _, m := range regexp.MustCompile(`(?m)^ *expr: (.*)$`).FindAllStringSubmatch(b.text, -1) {
			all[b.path] = append(all[b.path], m[1])
		}
	}
	return all
}

// exprFaults are what is wrong with the metrics and labels that an expression names.
func exprFaults(expr string, labels map[string]string) (faults []string) {
	known := func(name string) (of string, is bool) {
		if of, is = labels[name]; !is {
			of, is = labels[ofHistogram.ReplaceAllString(name, "")]
		}
		return of + ",instance,job,le", is
	}
	all := ""
	for _, name := range metricName.FindAllString(expr, -1) {
		of, is := known(name)
		if !is {
			faults = append(faults, "there is no metric "+name)
		}
		all += "," + of
	}
	has := func(of, label string) bool { return slices.Contains(strings.Split(of, ","), label) }
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		of, _ := known(m[1])
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !has(of, l[1]) {
				faults = append(faults, m[1]+" has no label "+l[1])
			}
		}
	}
	for _, m := range byLabels.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(m[1], ",") {
			if !has(all, strings.TrimSpace(l)) {
				faults = append(faults, "no label "+l)
			}
		}
	}
	if shared := regexp.MustCompile(`(?:sum|avg|count)(?: by \([^)]*\))? ?\(headway_shared_`); shared.MatchString(expr) {
		faults = append(faults, "series of all workers are added up")
	}
	return faults
}

// "TestDeploy holds each expression against the metrics that exist, and runs the tests of the alerts."
func TestDeploy(t *testing.T) {
	t.Parallel()
	labels, _ := documentedMetrics(t) // which TestMetricsAreAsWritten compares with the code
	for faulty, want := range map[string]string{
		"max(headway_unknown)":                                      "no metric",
		`rate(headway_run_seconds_bucket{rule="x"}[5m])`:            "no label rule",
		"sum by (rule) (headway_runs_total)":                        "no label rule",
		"sum by (rule) (headway_shared_rule_waiting)":               "added up",
		`headway_run_seconds_bucket{queue=~"a"} + headway_held_sec`: "headway_held_sec",
	} {
		if got := strings.Join(exprFaults(faulty, labels), "; "); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", faulty, got, want)
		}
	}
	var rules bytes.Buffer
	rules.WriteString("groups:\n  - name: all\n    rules:\n")
	n := 0
	for place, list := range expressions(t) {
		for _, expr := range list {
			n++
			for _, fault := range exprFaults(expr, labels) {
				t.Errorf("%s: %s: %s", place, expr, fault)
			}
			plain := strings.NewReplacer("$__rate_interval", "5m", "$rule", ".*").Replace(expr)
			fmt.Fprintf(&rules, "      - {record: \"e%d\", expr: %q}\n", n, plain)
		}
	}
	if n < 35 {
		t.Errorf("only %d expressions were found", n)
	}
	if testing.Short() {
		return // make test has no promtool; make test/more, and so CI, has
	}
	if said, err := promtool(t, "check", "rules", writeFile(t, "all.yaml", rules.String())); err != nil {
		t.Errorf("%v: %s", err, said)
	}
	if said, err := promtool(t, "test", "rules", filepath.Join(root, deploy, "alerts.test.yaml")); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}

// Each alert is tested where it fires and where it does not, and links to what to do.
func TestDeployAlerts(t *testing.T) {
	t.Parallel()
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range at(t, documents(t, "alerts.test.yaml")[0], "tests").([]any) {
		for _, one := range at(t, test, "alert_rule_test").([]any) {
			name := at(t, one, "alertname").(string)
			if one.(map[string]any)["exp_alerts"] != nil {
				fires[name] = true
			} else {
				silent[name] = true
			}
		}
	}
	byPath := pagesByPath(t)
	const site = "https://github.com/headway-go/headway/blob/main/"
	for _, rule := range at(t, documents(t, "alerts.yaml")[0], "groups", 0, "rules").([]any) {
		name := at(t, rule, "alert").(string)
		if !fires[name] || !silent[name] {
			t.Errorf("%s: tested to fire %t, and not to %t", name, fires[name], silent[name])
		}
		url := at(t, rule, "annotations", "runbook_url").(string)
		path, anchor, _ := strings.Cut(strings.TrimPrefix(url, site), "#")
		if p, ok := byPath[path]; !ok || !p.anchors()[anchor] {
			t.Errorf("%s: %s leads nowhere", name, url)
		}
	}
}

// The other files fit each other and the programs.
func TestDeployFiles(t *testing.T) {
	t.Parallel()
	byName := map[string]map[string]any{}
	for _, d := range documents(t, "kubernetes.yaml") {
		byName[d["kind"].(string)+" "+at(t, d, "metadata", "name").(string)] = d
	}
	worker := at(t, byName["Deployment headway-worker"], "spec", "template")
	container := at(t, worker, "spec", "containers", 0)
	for name, target := range map[string]any{
		"keda.yaml": at(t, documents(t, "keda.yaml")[0], "spec", "scaleTargetRef", "name"),
		"hpa.yaml":  at(t, documents(t, "hpa.yaml")[0], "spec", "scaleTargetRef", "name"),
	} {
		if byName[fmt.Sprint("Deployment ", target)] == nil {
			t.Errorf("%s scales %s, which is not there", name, target)
		}
	}
	monitor := documents(t, "podmonitor.yaml")[0]
	endpoint := at(t, monitor, "spec", "podMetricsEndpoints", 0)
	credentials := at(t, endpoint, "authorization", "credentials")
	secret := byName[fmt.Sprint("Secret ", at(t, credentials, "name"))]
	if at(t, endpoint, "port") != at(t, container, "ports", 0, "name") ||
		at(t, monitor, "spec", "selector", "matchLabels", "app") != at(t, worker, "metadata", "labels", "app") {
		t.Error("podmonitor.yaml does not find the worker's port")
	}
	at(t, secret, "stringData", at(t, credentials, "key").(string))
	for name, text := range map[string]string{
		"limits/limits.yaml": read(t, deploy+"/limits/limits.yaml"),
		"kubernetes.yaml":    at(t, byName["ConfigMap headway-limits"], "data", "limits.yaml").(string),
	} {
		if _, err := limitsyaml.Parse(name, []byte(text)); err != nil {
			t.Error(err)
		}
	}

	compose := documents(t, "compose.yaml")[0]
	for _, service := range at(t, compose, "services").(map[string]any) {
		mounts, _ := service.(map[string]any)["volumes"].([]any)
		for _, m := range mounts {
			from, _, _ := strings.Cut(m.(string), ":")
			if _, err := os.Stat(filepath.Join(root, deploy, from)); strings.HasPrefix(from, "./") && err != nil {
				t.Errorf("compose.yaml mounts %s: %v", from, err)
			}
		}
	}

	unit := read(t, deploy+"/headway-worker.service")
	start := regexp.MustCompile(`(?m)^ExecStart=\S+ (.*)$`).FindStringSubmatch(unit)
	if start == nil {
		t.Fatal("the unit starts nothing")
	}
	words := func(v any) (list []string) {
		for _, one := range v.([]any) {
			list = append(list, one.(string))
		}
		return list
	}
	for name, args := range map[string][]string{
		"kubernetes.yaml":        words(at(t, container, "args")),
		"kubernetes.yaml, page":  words(at(t, byName["Deployment headway-page"], "spec", "template", "spec", "containers", 0, "args")),
		"compose.yaml":           words(at(t, compose, "services", "worker", "command")),
		"compose.yaml, page":     words(at(t, compose, "services", "page", "command")),
		"headway-worker.service": strings.Fields(start[1]),
	} {
		usage := output(t, 0, "", "worker", "-h")
		if args[0] == "page" {
			usage = output(t, 0, "", "worker", "page", "-h")
		}
		for _, arg := range args {
			flag, _, _ := strings.Cut(arg, "=")
			if strings.HasPrefix(flag, "-") && !strings.Contains(usage, " -"+flag+" ") {
				t.Errorf("%s: there is no flag %s", name, flag)
			}
		}
	}
}

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
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		must(t, err)
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
