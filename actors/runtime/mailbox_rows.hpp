// Reports of mailboxes as lines of a table for people.
#pragma once

#include <vector>

#include "messages/messages.hpp"
#include "observe/mailbox_table.hpp"

namespace dflash {

std::vector<mailbox_row> rows_of(const std::vector<mailbox_report>& reports);

}  // namespace dflash
