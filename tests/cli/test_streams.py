"""Standard streams that are closed, full or left early."""

import os
import subprocess

from support import BINARY, SMALL, CliTest, main

PLAN = ["plan", *SMALL, "--sm", "90", "--json"]


class Streams(CliTest):
    def test_a_reader_who_leaves(self):
        ours, theirs = os.pipe()
        os.close(ours)
        process = self.start(*PLAN, stdout=theirs)
        os.close(theirs)
        result = self.finish(process)
        self.assertEqual((result.code, result.err), (0, ""))

    def shell(self, redirection):
        command = ["bash", "-c", f"exec \"$0\" \"$@\" {redirection}", BINARY, *PLAN]
        return self.finish(subprocess.Popen(command, cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL,
                                            stdout=subprocess.PIPE, stderr=subprocess.PIPE))

    def test_a_full_disk(self):
        self.assert_failed(self.shell(">/dev/full"), "cannot write to standard output")

    def test_closed_streams(self):
        self.assert_failed(self.shell(">&-"), "cannot write to standard output")
        self.assertEqual(self.shell("2>&-").code, 0)
        self.assertEqual(self.shell("<&-").code, 0)
        result = self.shell("<&- 2>&-")
        self.assertEqual(result.json()["schema"], "attnsmith.plan/1")

    def test_closed_input_is_read(self):
        command = ["bash", "-c", "exec \"$0\" plan --request - --sm 90 <&-", BINARY]
        self.assert_refused(self.finish(subprocess.Popen(command, env=self.environment(), stdout=subprocess.PIPE,
                                                         stderr=subprocess.PIPE)), "standard input")


if __name__ == "__main__":
    main()
