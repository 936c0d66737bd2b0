package clients

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// How long a command of the document may take: the first one may download modules.
const commandWithin = 5 * time.Minute

const (
	document = "../../docs/first-contract.md"
	// The first line of commands that run in the second terminal until Ctrl-C.
	secondTerminal = "# second terminal\n"
	// Before this command the reader presses Ctrl-C in the second terminal, too.
	lastCommand = "heddle down\n"
	// Stands for any text in a line of an output, and alone in a line for any lines.
	anything = "…"
)

// A part of the document between fences.
type block struct {
	line           int
	language, text string
	// The last line before it.
	before string
}

func readBlocks(t *testing.T) []block {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	var blocks []block
	var current *block
	before := ""
	for index, line := range strings.Split(string(text), "\n") {
		language, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && current == nil:
			current = &block{line: index + 1, language: language, before: before}
		case isFence:
			blocks = append(blocks, *current)
			current, before = nil, ""
		case current != nil:
			current.text += line + "\n"
		case line != "":
			before = line
		}
	}
	if current != nil {
		t.Fatalf("%s:%d: the block does not end", document, current.line)
	}
	return blocks
}

// What a command has printed so far.
type printed struct {
	lock  sync.Mutex
	bytes bytes.Buffer
}

func (to *printed) Write(text []byte) (int, error) {
	to.lock.Lock()
	defer to.lock.Unlock()
	return to.bytes.Write(text)
}

func (to *printed) String() string {
	to.lock.Lock()
	defer to.lock.Unlock()
	return to.bytes.String()
}

// A block of commands in a shell.
type shell struct {
	command *exec.Cmd
	printed *printed
	ended   chan error
}

func startShell(t *testing.T, folder, commands string) *shell {
	t.Helper()
	heddle, err := filepath.Abs(program())
	if err != nil {
		t.Fatal(err)
	}
	// Ctrl-C ends the command that runs, and not the shell.
	command := exec.Command("sh", "-e", "-c", "trap : INT\n"+commands)
	command.Dir = folder
	command.Env = append(os.Environ(), "PATH="+filepath.Dir(heddle)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	// Ctrl-C reaches every process of the block, as in a terminal.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	started := &shell{command: command, printed: &printed{}, ended: make(chan error, 1)}
	command.Stdout, command.Stderr = started.printed, started.printed
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { started.ended <- command.Wait() }()
	return started
}

func (running *shell) signal(signal syscall.Signal) {
	_ = syscall.Kill(-running.command.Process.Pid, signal)
}

// The end of the commands.
func (running *shell) wait() error {
	select {
	case err := <-running.ended:
		return err
	case <-time.After(commandWithin):
		running.signal(syscall.SIGKILL)
		return fmt.Errorf("the commands did not end within %v", commandWithin)
	}
}

// Waits until commands that do not end have printed a text.
func (running *shell) waitFor(wanted *regexp.Regexp) error {
	for begin := time.Now(); !wanted.MatchString(running.printed.String()); time.Sleep(20 * time.Millisecond) {
		select {
		case err := <-running.ended:
			return fmt.Errorf("the commands ended too early: %v\n%s", err, running.printed)
		default:
		}
		if time.Since(begin) > commandWithin {
			return fmt.Errorf("the output did not come within %v:\n%s", commandWithin, running.printed)
		}
	}
	return nil
}

// Matches an output of the document.
func output(text string) *regexp.Regexp {
	pattern := "\n" + regexp.QuoteMeta(text)
	pattern = strings.ReplaceAll(pattern, "\n"+anything+"\n", "\n(?s:.*\n)?")
	return regexp.MustCompile("^" + strings.ReplaceAll(pattern, anything, ".*")[1:] + "$")
}

// The reader of the document.
type reader struct {
	folder string
	// What runs in the second terminal.
	second *shell
}

// Presses Ctrl-C in the second terminal.
func (reader *reader) endSecond() error {
	if reader.second == nil {
		return nil
	}
	ending := reader.second
	reader.second = nil
	ending.signal(syscall.SIGINT)
	if err := ending.wait(); err != nil {
		return fmt.Errorf("after Ctrl-C: %w\n%s", err, ending.printed)
	}
	return nil
}

// Runs commands, which must succeed and print an output. In the second terminal they keep running.
func (reader *reader) run(t *testing.T, commands, expected string) error {
	t.Helper()
	wanted := output(expected)
	isSecond := strings.HasPrefix(commands, secondTerminal)
	if isSecond || strings.HasPrefix(commands, lastCommand) {
		if err := reader.endSecond(); err != nil {
			return err
		}
	}
	running := startShell(t, reader.folder, commands)
	if isSecond {
		reader.second = running
		return running.waitFor(wanted)
	}
	if err := running.wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, running.printed)
	}
	if found := running.printed.String(); !wanted.MatchString(found) {
		return fmt.Errorf("the output is not the document's:\n%s", found)
	}
	return nil
}

// Does what docs/first-contract.md tells its reader:
//   - A block `sh` is run, and must succeed. After `# second terminal` it keeps running until the next such block.
//   - A block `text` is the whole output of the block before it.
//   - A block of another language is written to the file that the line before it names.
func TestFirstContract(t *testing.T) {
	reader := &reader{folder: t.TempDir()}
	t.Cleanup(func() {
		_ = reader.endSecond()
		_ = startShell(t, reader.folder, "heddle down").wait()
	})
	// The network of a reader has the usual ports. This one is made before, with free ports, which it keeps.
	if err := reader.run(t, "heddle up --any-ports --detach && heddle down", anything+"\n"); err != nil {
		t.Fatal(err)
	}
	file := regexp.MustCompile("the file `([^`]+)`")
	blocks, hasRun := readBlocks(t), false
	for index, block := range blocks {
		var err error
		switch block.language {
		case "sh":
			expected := anything + "\n"
			if index+1 < len(blocks) && blocks[index+1].language == "text" {
				expected = blocks[index+1].text
			}
			hasRun = true
			err = reader.run(t, block.text, expected)
		case "text":
		default:
			named := file.FindStringSubmatch(block.before)
			if named == nil {
				t.Fatalf("%s:%d: the line before the block names no file", document, block.line)
			}
			err = os.WriteFile(filepath.Join(reader.folder, named[1]), []byte(block.text), 0o600)
		}
		if err != nil {
			t.Fatalf("%s:%d: %v", document, block.line, err)
		}
	}
	if !hasRun {
		t.Fatal("the document has no commands")
	}
}
