package project

import (
	"context"
	"errors"
	"fmt"
	"go/version"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

// manifest is what docs/kubernetes.md uses of the kinds that it shows. Fields that are not here are refused: they are
// mistyped, or nothing here looks at them.
type manifest struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name         string
		GenerateName string `yaml:"generateName"`
	}
	Data       map[string]string
	StringData map[string]string `yaml:"stringData"`
	Spec       struct {
		Replicas                int
		BackoffLimit            int `yaml:"backoffLimit"`
		TTLSecondsAfterFinished int `yaml:"ttlSecondsAfterFinished"`
		Selector                struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     podSpec
		}
	}
}

type podSpec struct {
	TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
	RestartPolicy                 string `yaml:"restartPolicy"`
	AutomountServiceAccountToken  *bool  `yaml:"automountServiceAccountToken"`
	Containers                    []container
	Volumes                       []struct {
		Name      string
		ConfigMap struct{ Name string } `yaml:"configMap"`
	}
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct {
		Name      string
		ValueFrom struct {
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	ReadinessProbe  probe `yaml:"readinessProbe"`
	LivenessProbe   probe `yaml:"livenessProbe"`
	SecurityContext struct {
		RunAsNonRoot             bool `yaml:"runAsNonRoot"`
		ReadOnlyRootFilesystem   bool `yaml:"readOnlyRootFilesystem"`
		AllowPrivilegeEscalation bool `yaml:"allowPrivilegeEscalation"`
		Capabilities             struct{ Drop []string }
	} `yaml:"securityContext"`
	VolumeMounts []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	PeriodSeconds    int `yaml:"periodSeconds"`
	FailureThreshold int `yaml:"failureThreshold"`
	TimeoutSeconds   int `yaml:"timeoutSeconds"`
	Exec             struct{ Command []string }
}

// isManifest tells blocks for Kubernetes from limits files.
func isManifest(b block) bool { return strings.HasPrefix(b.text, "apiVersion:") }

// manifests reads the Kubernetes objects of the pages, by kind.
func manifests(t *testing.T) map[string]manifest {
	t.Helper()
	all := map[string]manifest{}
	for _, b := range blocks(t, "yaml") {
		if !isManifest(b) {
			continue
		}
		dec := yaml.NewDecoder(strings.NewReader(b.text))
		dec.KnownFields(true)
		for {
			var m manifest
			err := dec.Decode(&m)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s:%d: %v", b.path, b.line, err)
			}
			if m.APIVersion == "" || m.Metadata.Name+m.Metadata.GenerateName == "" || all[m.Kind].Kind != "" {
				t.Fatalf("%s:%d: a %q without apiVersion or name, or a second one", b.path, b.line, m.Kind)
			}
			all[m.Kind] = m
		}
	}
	for _, kind := range []string{"ConfigMap", "Deployment", "Job", "Secret"} {
		if all[kind].Kind == "" {
			t.Fatalf("the pages have no %s: %v", kind, slices.Collect(maps.Keys(all)))
		}
	}
	return all
}

// pod is a container of the pages as this machine runs it: its volumes in a directory, its Secret's values in the environment.
type pod struct {
	args  []string
	env   []string
	grace time.Duration
	container
}

// podOf reads the one container of a Deployment or Job. Its Redis is that at redisURL.
func podOf(t *testing.T, all map[string]manifest, kind, redisURL string) pod {
	t.Helper()
	spec := all[kind].Spec.Template.Spec
	if len(spec.Containers) != 1 || len(spec.Volumes) != 1 || len(spec.Containers[0].VolumeMounts) != 1 {
		t.Fatalf("%s: not one container with one volume", kind)
	}
	c := spec.Containers[0]
	if !strings.HasPrefix(c.Image, "headway-worker:v") {
		t.Fatalf("%s: image %s", kind, c.Image)
	}
	files, mount := all["ConfigMap"], c.VolumeMounts[0]
	if spec.Volumes[0].ConfigMap.Name != files.Metadata.Name || mount.Name != spec.Volumes[0].Name {
		t.Fatalf("%s mounts a ConfigMap that is not on the page", kind)
	}
	dir := t.TempDir()
	for name, text := range files.Data {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	p := pod{container: c, grace: time.Duration(spec.TerminationGracePeriodSeconds) * time.Second}
	for _, arg := range c.Args {
		p.args = append(p.args, strings.ReplaceAll(arg, mount.MountPath, dir))
	}
	for _, v := range c.Env {
		ref := v.ValueFrom.SecretKeyRef
		switch secret := all["Secret"]; {
		case v.Name == "REDIS_URL":
			p.env = append(p.env, "REDIS_URL="+redisURL)
		case ref.Name == secret.Metadata.Name && secret.StringData[ref.Key] != "":
			p.env = append(p.env, v.Name+"="+secret.StringData[ref.Key])
		default:
			t.Errorf("%s: the Secret of the page has no %s", v.Name, ref.Key)
		}
	}
	return p
}

// flagOf is the value of a flag that is written -name=value.
func (p pod) flagOf(t *testing.T, name string) string {
	t.Helper()
	for _, arg := range p.args {
		if value, ok := strings.CutPrefix(arg, "-"+name+"="); ok {
			return value
		}
	}
	t.Fatalf("the container has no -%s", name)
	return ""
}

// start runs the container's command, on the loopback in the place of all addresses, and returns where it listens.
func (p pod) start(t *testing.T) (worker *programs.Program, addr string) {
	t.Helper()
	args := slices.Clone(p.args)
	at := slices.Index(args, fmt.Sprintf("-listen=0.0.0.0:%d", p.Ports[0].ContainerPort))
	if at < 0 {
		t.Fatalf("-listen is not the container's port: %v", args)
	}
	args[at] = "-listen=127.0.0.1:0"
	worker = programs.StartIn(t, p.env, nil, "worker", args...)
	return worker, listening(worker)
}

// probe runs a probe's command in the place of its container, without variables other than the container's, and returns its exit code.
func (p pod) probe(t *testing.T, addr string, of probe) (code int, said string) {
	t.Helper()
	at := slices.Index(of.Exec.Command, fmt.Sprintf("-listen=0.0.0.0:%d", p.Ports[0].ContainerPort))
	if len(of.Exec.Command) == 0 || of.Exec.Command[0] != "/usr/local/bin/headway-worker" || at < 0 {
		t.Fatalf("a probe runs %q, and the Dockerfile has the worker at /usr/local/bin/headway-worker", of.Exec.Command)
	}
	args := slices.Clone(of.Exec.Command[1:])
	args[at-1] = "-listen=" + addr
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, programs.Path(t, "worker"), args...)
	cmd.Env = p.env
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// docs/kubernetes.md: "TestKubernetes reads these manifests, runs their commands and asks their probes".
func TestKubernetes(t *testing.T) {
	t.Parallel()
	all := manifests(t)
	server := redistest.NewServer(t)
	url := "redis://" + server.Addr()

	job := podOf(t, all, "Job", url)
	programs.StartIn(t, job.env, nil, "worker", job.args...).Ends(0)

	p := podOf(t, all, "Deployment", url)
	if d := all["Deployment"]; !maps.Equal(d.Spec.Selector.MatchLabels, d.Spec.Template.Metadata.Labels) {
		t.Error("the Deployment does not select its own pods")
	}
	drain, err := time.ParseDuration(p.flagOf(t, "drain"))
	if longest, err2 := time.ParseDuration(p.flagOf(t, "max-timeout")); err != nil || err2 != nil || longest > drain || drain+30*time.Second > p.grace {
		t.Errorf("-max-timeout %s, -drain %s, grace %s: not in this order, or less than 30 s to spare", longest, drain, p.grace)
	}
	for name, of := range map[string]probe{"readiness": p.ReadinessProbe, "liveness": p.LivenessProbe} {
		if of.TimeoutSeconds <= 5 {
			t.Errorf("%s: timeoutSeconds %d is not above the 5 s that worker health waits", name, of.TimeoutSeconds)
		}
	}
	worker, addr := p.start(t)
	await := func(p pod, of probe, want int, line string) {
		t.Helper()
		redistest.WaitFor(t, line, 2*time.Minute, func() bool {
			got, said := p.probe(t, addr, of)
			return got == want && strings.Contains(said, line)
		})
	}
	await(p, p.ReadinessProbe, 0, "ok: the worker takes tasks")
	await(p, p.LivenessProbe, 0, "ok: the worker answers")
	bare := p
	bare.env = nil
	await(bare, p.ReadinessProbe, 1, "refuses the token")
	server.Kill9()
	await(p, p.ReadinessProbe, 1, "the worker takes no tasks")
	if got, said := p.probe(t, addr, p.LivenessProbe); got != 0 {
		t.Errorf("liveness exits with %d while Redis is away, %s: pods would be killed for it", got, said)
	}
	server.Restart(t)
	await(p, p.ReadinessProbe, 0, "ok: ")
	worker.Terminate()
	worker.Ends(0)
}

// stages are those of the Dockerfile by their names: the lines of each stand behind those of the one that it begins with.
func stages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, part := range strings.Split(read(t, "Dockerfile"), "\nFROM ")[1:] {
		first, lines, _ := strings.Cut(part, "\n")
		from, name, named := strings.Cut(first, " AS ")
		if !named {
			t.Fatalf("Dockerfile: a stage without a name: FROM %s", first)
		}
		all[name] = all[from] + lines + "\n"
	}
	return all
}

// The builder's Go is not older than go.mod's, what is copied is there, and both images run their program as a user who is not root.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	file := read(t, "Dockerfile")
	needs := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(read(t, "go.mod"))[1]
	built := regexp.MustCompile(`(?m)^FROM golang:(\d+\.\d+\.\d+)-[a-z]+ AS `).FindStringSubmatch(file)
	if built == nil || version.Compare("go"+built[1], "go"+needs) < 0 {
		t.Errorf("the builder is %q, no whole version of Go from go.mod's %s on", built, needs)
	}
	for _, copied := range regexp.MustCompile(`(?m)^COPY ([^-].*) \S+$`).FindAllStringSubmatch(file, -1) {
		for source := range strings.FieldsSeq(copied[1]) {
			if found, err := filepath.Glob(filepath.Join(root, source)); err != nil || len(found) == 0 {
				t.Errorf("there is no %s to copy", source)
			}
		}
	}
	users := regexp.MustCompile(`(?m)^USER (.*)$`)
	for _, program := range []string{"enqueue", "worker"} {
		stage, path := stages(t)[program], "/usr/local/bin/headway-"+program
		user := users.FindAllStringSubmatch(stage, -1)
		if len(user) == 0 || !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user[len(user)-1][1]) {
			t.Errorf("target %s runs as %q", program, user)
		}
		for _, line := range []string{" " + path + "\n", " /etc/ssl/certs/ca-certificates.crt\n", "\nENTRYPOINT [\"" + path + "\"]\n"} {
			if !strings.Contains(stage, line) {
				t.Errorf("target %s lacks %q", program, line)
			}
		}
	}
}

// dockerTakes tells what is wrong with a docker command of a page: a target that is not there, or flags that
// the program of an image does not know.
func dockerTakes(t *testing.T, words []string) error {
	t.Helper()
	if at := slices.Index(words, "--target"); at >= 0 && stages(t)[words[at+1]] == "" {
		return fmt.Errorf("the Dockerfile has no target %s", words[at+1])
	}
	for at, w := range words {
		if name, ok := strings.CutPrefix(w, "headway-"); ok && words[1] == "run" {
			return takes(programs.Path(t, name), words[at+1:])
		}
	}
	return nil
}
