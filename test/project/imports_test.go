package project

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/limiter.md: "Package throttle imports no YAML, no cron, no time zones and no asynq", nor do the packages that need no
// more than it.
func TestThrottleImportsLittle(t *testing.T) {
	t.Parallel()
	heavy := regexp.MustCompile(`yaml|cron|tzdata|asynq|prometheus|miniredis`)
	imports := func(pkg string) []string { return strings.Fields(goSays(t, "list", "-deps", pkg)) }
	for _, pkg := range []string{"./throttle", "./throttle/policy", "./throttle/inbound", "./throttle/roundtrip", "./throttle/upstream", "./throttle/usage"} {
		for _, path := range imports(pkg) {
			if heavy.MatchString(path) {
				t.Errorf("%s brings %s", pkg, path)
			}
		}
	}
	for pkg, brings := range map[string]string{"./throttle/limitsyaml": "go.yaml.in/yaml/v4", "./throttle/wallclock": "github.com/robfig/cron/v3"} {
		if !slices.Contains(imports(pkg), brings) {
			t.Errorf("%s does not bring %s: the test looks for the wrong thing", pkg, brings)
		}
	}
}
